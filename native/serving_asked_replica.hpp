// A replica whose policy and cache Python has, those of built-in engines that C++ has not and those of users: the loop of
// triosim/serving/replica.py, which asks the policy for each step.  Requests are Python's own objects, and whatever the
// policy can read of them is as it would be there.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "serving_fleet.hpp"

namespace triosim::serving {

namespace nb = nanobind;

// Names of attributes, each made once.
struct Names {
    nb::object busy = name("busy"), blocks = name("blocks"), cached = name("cached"), computed = name("computed"),
               end = name("end"), finished = name("finished"), first_token = name("first_token"), known = name("known"),
               last_end = name("last_end"), last_token = name("last_token"), prefill = name("prefill"),
               restarts = name("restarts"), row = name("row"), running = name("running"), scheduled = name("scheduled"),
               waited = name("waited"), free = name("free"), waiting = name("waiting");

private:
    static nb::object name(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};

class AskedReplica : public CountedSteps {
public:
    // made: a request's object, of its row, number, arrival, prompt and output.
    AskedReplica(nb::object replica, nb::object made, Times& times, Samples gaps, bool steady, bool ahead)
        : CountedSteps(times, std::move(gaps)), python(std::move(replica)), made_(std::move(made)), policy_(python.attr("policy")),
          cache_(python.attr("cache")), check_(python.attr("check")), schedule_(policy_.attr("schedule")),
          queue_(policy_.attr("queue")), finish_(policy_.attr("finish")), match_(cache_.attr("match")),
          store_(cache_.attr("store")), hold_(cache_.attr("hold")),
          size_(nb::cast<std::int64_t>(cache_.attr("block_tokens"))), reuses_(nb::cast<bool>(cache_.attr("reuses"))),
          steady_(steady), ahead_(ahead) {
        const nb::object most = policy_.attr("max_tokens");
        if (!most.is_none()) most_ = whole(most);
    }

    nb::object python;

    // Routers and policies know a request by its object.
    void known(Request& request) {
        request.python = made_(request.row, request.number, request.arrived, request.prompt, request.end - request.prompt)
                             .release()
                             .ptr();
    }

    static void forget(Request& request) { Py_CLEAR(request.python); }

    std::int64_t match(const Request& request) const { return whole(match_(object(request))); }

    void arrive(Request& request) {
        own_.emplace(request.row, &request);
        check_(object(request));
        ++outstanding;
        if (ahead_) {
            coming_.push_back(nb::borrow(object(request)));
        } else {
            queue_(object(request));
        }
    }

    // The end of the step that begins, -1 if none does.
    std::int64_t start(std::int64_t now, std::int64_t horizon) {
        if (in_flight) return -1;
        nb::object batch = schedule_();
        if (empty(batch) && !coming_.empty()) {  // nothing was scheduled ahead
            see();
            batch = schedule_();
        }
        if (empty(batch)) return -1;
        take(batch, now);
        const auto count = static_cast<std::int64_t>(batch_.size());
        if (steady_ && coming_.empty() && shape_.decodes == count && count == length(policy_.attr(names_.running)) &&
            !(reuses_ && length(policy_.attr(names_.waiting))))
            now = decoded(batch_, Asked{*this}, get(cache_, names_.free) - count, size_, now, horizon);
        const std::int64_t end = begun(count, now, ahead_);
        see();
        return end;
    }

    template <class Finished>
    void end(std::int64_t now, Finished finished) {
        in_flight = false;
        std::int64_t gap = 0, times = 0;
        const nb::object at = nb::int_(now);
        for (auto& [request, count] : batch_) {
            set(request, names_.busy, Py_False);
            set(request, names_.last_end, at);
            const std::int64_t computed = get(request, names_.computed) + count;
            set(request, names_.computed, computed);
            if (reuses_) store_(request);
            std::int64_t known = get(request, names_.known);
            if (computed < known) continue;
            set(request, names_.known, ++known);
            if (get(request, names_.first_token) < 0) {
                set(request, names_.first_token, at);
            } else if (const std::int64_t since = now - get(request, names_.last_token); since == gap) {
                ++times;
            } else {
                gaps.add(gap, times);
                gap = since;
                times = 1;
            }
            set(request, names_.last_token, at);
            if (known != get(request, names_.end)) continue;
            set(request, names_.finished, at);
            --outstanding;
            finish_(request);
            const std::int64_t row = get(request, names_.row);
            Request& own = *own_.at(row);
            own_.erase(row);
            own.scheduled = get(request, names_.scheduled);
            own.first_token = get(request, names_.first_token);
            own.waited = get(request, names_.waited);
            own.restarts = get(request, names_.restarts);
            own.cached = get(request, names_.cached);
            forget(own);
            finished(own);
        }
        gaps.add(gap, times);
        batch_.clear();
    }

private:
    static std::int64_t whole(nb::handle value) {
        const std::int64_t out = PyLong_AsLongLong(value.ptr());
        if (out == -1 && PyErr_Occurred()) throw nb::python_error();
        return out;
    }
    static std::int64_t get(nb::handle object, const nb::object& name) {
        return whole(nb::steal(checked(PyObject_GetAttr(object.ptr(), name.ptr()))));
    }
    static void set(nb::handle object, const nb::object& name, nb::handle value) {
        if (PyObject_SetAttr(object.ptr(), name.ptr(), value.ptr())) throw nb::python_error();
    }
    static void set(nb::handle object, const nb::object& name, std::int64_t value) {
        set(object, name, nb::int_(value));
    }
    static PyObject* checked(PyObject* found) {
        if (!found) throw nb::python_error();
        return found;
    }
    static std::int64_t length(nb::handle of) {
        const Py_ssize_t found = PyObject_Size(of.ptr());
        if (found < 0) throw nb::python_error();
        return found;
    }
    static bool empty(nb::handle batch) {
        const int found = PyObject_IsTrue(batch.ptr());
        if (found < 0) throw nb::python_error();
        return !found;
    }
    static nb::handle object(const Request& request) { return request.python; }

    void see() {
        for (const nb::object& request : coming_) queue_(request);
        coming_.clear();
    }

    // What a batch computes; its requests are marked.
    void take(nb::handle batch, std::int64_t now) {
        batch_.clear();
        shape_ = {0, 0, 0, 0, std::move(shape_.chunks)};
        shape_.chunks.clear();
        const nb::object at = nb::int_(now);
        const nb::object rows = nb::steal(PySequence_Fast(batch.ptr(), ""));
        bool good = rows.is_valid();
        const Py_ssize_t count = good ? PySequence_Fast_GET_SIZE(rows.ptr()) : 0;
        for (Py_ssize_t place = 0; good && place < count; ++place) good = taken(PySequence_Fast_GET_ITEM(rows.ptr(), place));
        if (!good || (most_ >= 0 && shape_.tokens > most_)) refuse(batch, now);
        for (auto& [request, tokens] : batch_) {
            const std::int64_t last = get(request, names_.last_end);
            if (last >= 0) {
                if (last != now) set(request, names_.waited, get(request, names_.waited) + now - last);
            } else if (get(request, names_.scheduled) < 0) {
                set(request, names_.scheduled, at);
            }
        }
    }

    // Whether a pair of a batch keeps to the rules; then it is counted.
    bool taken(nb::handle given) {
        const nb::object pair = nb::steal(PySequence_Fast(given.ptr(), ""));
        if (!pair.is_valid() || PySequence_Fast_GET_SIZE(pair.ptr()) != 2) return false;
        const nb::handle request = PySequence_Fast_GET_ITEM(pair.ptr(), 0);
        const nb::object tokens = nb::steal(PyNumber_Index(PySequence_Fast_GET_ITEM(pair.ptr(), 1)));
        if (!tokens.is_valid()) return false;
        const std::int64_t count = whole(tokens);
        const std::int64_t before = get(request, names_.computed), known = get(request, names_.known);
        const std::int64_t computed = before + count;
        const nb::object taken = nb::steal(checked(PyObject_GetAttr(request.ptr(), names_.busy.ptr())));
        if (!taken.is(Py_False) || count < 1 || computed > known) return false;
        if (get(request, names_.blocks) * size_ < computed) return false;
        if (before == get(request, names_.cached)) {
            const int runs = PySequence_Contains(policy_.attr(names_.running).ptr(), request.ptr());
            if (runs < 0) throw nb::python_error();
            if (!runs) return false;
        }
        set(request, names_.busy, Py_True);
        batch_.emplace_back(nb::borrow(request), count);
        shape_.tokens += count;
        shape_.sampled += computed == known;
        if (before >= get(request, names_.prefill)) {
            ++shape_.decodes;
            shape_.context += known;
        } else {
            shape_.chunks.emplace_back(count, before);
        }
        return true;
    }

    // Python says which rule a batch breaks.
    [[noreturn]] void refuse(nb::handle batch, std::int64_t now) {
        PyErr_Clear();
        for (auto& [request, tokens] : batch_) set(request, names_.busy, Py_False);
        batch_.clear();
        python.attr("refuse")(batch, now);
        throw std::runtime_error("a batch that was refused keeps to the rules");
    }

    // Requests as Python has them.
    struct Asked {
        const AskedReplica& own;
        mutable nb::object at = nb::none();  // the same time of all of them
        mutable std::int64_t when = -1;

        std::int64_t last_token(nb::handle request) const { return get(request, own.names_.last_token); }
        std::int64_t left(nb::handle request) const {
            return get(request, own.names_.end) - get(request, own.names_.known) - 1;
        }
        void go_on(nb::handle request, std::int64_t steps, std::int64_t now) const {
            if (when != now) at = nb::int_(when = now);
            const std::int64_t known = get(request, own.names_.known) + steps;
            set(request, own.names_.known, known);
            set(request, own.names_.computed, get(request, own.names_.computed) + steps);
            set(request, own.names_.last_end, at);
            set(request, own.names_.last_token, at);
            if (empty(own.hold_(request, known))) throw GiveUp("blocks were counted before");
            if (own.reuses_) own.store_(request);
        }
    };

    Names names_;
    nb::object made_, policy_, cache_, check_, schedule_, queue_, finish_, match_, store_, hold_;
    std::int64_t size_, most_ = -1;
    bool reuses_, steady_, ahead_;
    std::vector<nb::object> coming_;
    std::vector<std::pair<nb::object, std::int64_t>> batch_;
    KeyTable<Request*> own_;  // by row; the fleet's, which goes before its replicas
};

}  // namespace triosim::serving
