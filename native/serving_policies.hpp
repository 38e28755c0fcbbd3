// Scheduling policies: who gets how many tokens in the next step.  Each does what its file in triosim/serving/engines
// says, on one pipeline stage and without priorities.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "serving_cache.hpp"

namespace triosim::serving {

// See triosim.serving.native, which reads them off a policy.
struct Options {
    std::int64_t max_running = 0, max_tokens = -1, longest = 0;  // max_tokens -1 for any number
    bool steady = false;
    double watermark = 0, share = 0;        // sarathi; sglang
    bool no_evict = false, chunked = false; // trtllm
    bool padded = false;                    // vllm_2023
    std::int64_t decode_steps = 0;          // lightllm
    bool ahead = false;                     // a step is scheduled when the one before begins
};

class Policy {
public:
    Policy(const Options& options, Cache& cache) : own(options), cache(cache) {}
    virtual ~Policy() = default;

    const Options own;
    Cache& cache;
    std::deque<Request*> waiting;
    std::vector<Request*> running;  // in order of arrival

    virtual void schedule(Batch& step) = 0;

    // A request of those that run has all its tokens.
    virtual void finish(Request& request) { cache.release(request); }

protected:
    static constexpr std::int64_t any = std::int64_t{1} << 62;
    std::int64_t budget() const { return own.max_tokens < 0 ? any : own.max_tokens; }
    bool more_may_run() const {
        return !waiting.empty() && static_cast<std::int64_t>(running.size()) < own.max_running;
    }
    bool more_in(const Batch& step) const {
        return static_cast<std::int64_t>(step.size()) < std::max(own.max_running, std::int64_t{1});
    }

    Request& admit() {
        Request* request = waiting.front();
        waiting.pop_front();
        auto place = running.end();
        while (place != running.begin() && (*(place - 1))->number > request->number) --place;
        running.insert(place, request);
        return *request;
    }

    void preempt(Request* request) {
        running.erase(std::find(running.begin(), running.end(), request));
        cache.release(*request);
        request->computed = 0;
        request->prefill = request->known;
        ++request->restarts;
        waiting.push_front(request);
    }

    // Blocks for one more running request's tokens; the latest arrivals of those from `at` on give way to it, which are
    // the last of the running, until there are.  False if it had to give way itself.
    template <class Enough>
    bool make_room(std::size_t at, Enough enough, bool& preempted) {
        while (!enough()) {
            preempted = true;
            Request* victim = running.back();
            const bool itself = running.size() == at + 1;
            preempt(victim);
            if (itself) return false;
        }
        return true;
    }
};

class Vllm final : public Policy {
public:
    using Policy::Policy;

    void schedule(Batch& step) override {
        std::int64_t left = budget();
        bool preempted = false;
        for (std::size_t at = 0; at < running.size() && left; ++at) {
            Request* request = running[at];
            const std::int64_t tokens = std::min(request->lacks(), left);
            const auto held = [&] { return cache.hold(*request, request->computed + tokens); };
            if (!make_room(at, held, preempted)) break;
            step.emplace_back(request, tokens);
            left -= tokens;
        }
        while (!preempted && left && more_may_run()) {
            Request& request = *waiting.front();
            const std::int64_t found = cache.match(request);
            const std::int64_t tokens = std::min(request.known - found, left);
            if (!cache.start(request, found + tokens)) break;
            admit();
            step.emplace_back(&request, tokens);
            left -= tokens;
        }
    }
};

class Sarathi final : public Policy {
public:
    using Policy::Policy;

    void schedule(Batch& step) override {
        begun_.clear();
        bool preempted = false;
        const auto free = [&] { return cache.free > 0; };
        for (std::size_t at = 0; at < running.size() && more_in(step); ++at) {
            Request* request = running[at];
            if (!request->decoding()) {
                begun_.push_back(request);
                continue;
            }
            if (!make_room(at, free, preempted)) break;
            cache.hold(*request, request->known);
            step.emplace_back(request, 1);
        }
        std::int64_t chunk = own.max_tokens;
        if (chunk < 0) {
            chunk = 0;
            for (const Request* request : begun_) chunk += request->lacks();
            for (const Request* request : waiting) chunk += request->known;
        }
        std::int64_t left = std::max(chunk - static_cast<std::int64_t>(step.size()), std::int64_t{0});
        for (Request* request : begun_) {
            const std::int64_t tokens = std::min(request->lacks(), left);
            if (tokens) step.emplace_back(request, tokens);
            left -= tokens;
        }
        const double keep = own.watermark * static_cast<double>(cache.blocks);
        while (left && more_may_run() && more_in(step)) {
            Request& request = *waiting.front();
            if (static_cast<double>(cache.free - cache.of(request.known)) < keep) break;
            admit();
            cache.start(request, request.known);
            const std::int64_t tokens = std::min(request.lacks(), left);
            step.emplace_back(&request, tokens);
            left -= tokens;
        }
    }

private:
    std::vector<Request*> begun_;
};

class Vllm2023 final : public Policy {
public:
    using Policy::Policy;

    void schedule(Batch& step) override {
        prompts(step);
        if (step.empty()) decodes(step);
    }

private:
    void prompts(Batch& step) {
        std::int64_t longest = 0, together = 0;
        const double keep = own.watermark * static_cast<double>(cache.blocks);
        while (more_may_run() && more_in(step)) {
            Request& request = *waiting.front();
            longest = std::max(longest, request.known);
            together += request.known;
            const std::int64_t tokens = own.padded ? (static_cast<std::int64_t>(step.size()) + 1) * longest : together;
            if (tokens > budget() || static_cast<double>(cache.free - cache.of(request.known)) < keep) break;
            admit();
            cache.start(request, request.known);
            step.emplace_back(&request, request.lacks());
        }
    }

    void decodes(Batch& step) {
        bool preempted = false;
        const auto free = [&] { return cache.free > 0; };
        for (std::size_t at = 0; at < running.size() && more_in(step); ++at) {
            Request* request = running[at];
            if (!make_room(at, free, preempted)) break;
            cache.hold(*request, request->known);
            step.emplace_back(request, 1);
        }
    }
};

class LightLlm final : public Policy {
public:
    using Policy::Policy;

    void schedule(Batch& step) override {
        if (running.empty() || passed_ >= own.decode_steps) {
            passed_ = 0;
            prompts(step);
            if (!step.empty()) return;
        }
        ++passed_;
        for (Request* request : running) {
            cache.hold(*request, request->known);
            step.emplace_back(request, 1);
        }
    }

private:
    void prompts(Batch& step) {
        std::int64_t tokens = 0, held = cache.blocks - cache.free;
        spans_.clear();
        for (const Request* request : running) {
            spans_.emplace_back(request->remaining(), request->known);
            held -= request->blocks;
        }
        const std::int64_t room = cache.most_tokens() - std::max(held, std::int64_t{0}) * cache.size;
        while (more_may_run()) {
            Request& request = *waiting.front();
            tokens += request.known;
            spans_.emplace_back(request.remaining(), request.known);
            if (tokens > budget() || peak() > room) break;
            admit();
            cache.start(request, request.known);
            step.emplace_back(&request, request.lacks());
        }
    }

    // Most tokens held at a time if nobody joins.
    std::int64_t peak() {
        std::sort(spans_.begin(), spans_.end(), std::greater<>());
        std::int64_t most = 0, total = 0, number = 0;
        for (const auto& [remaining, known] : spans_) {
            total += known;
            most = std::max(most, remaining * ++number + total);
        }
        return most;
    }

    std::int64_t passed_ = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> spans_;  // of each request, tokens to come and known ones
};

class FasterTransformer final : public Policy {
public:
    using Policy::Policy;

    void schedule(Batch& step) override {
        if (going_.empty()) {
            while (!waiting.empty() && more_in(going_) && cache.start(*waiting.front(), own.longest)) {
                Request& request = admit();
                going_.emplace_back(&request, 0);
            }
        }
        for (const auto& [request, _] : going_) step.emplace_back(request, request->lacks());
    }

    // Blocks come back together, in the order in which they were given: what held them is kept till then.
    void finish(Request& request) override {
        done_.push_back(request);
        std::erase_if(going_, [&](const auto& one) { return one.first == &request; });
        if (!going_.empty()) return;
        std::sort(done_.begin(), done_.end(), [](const Request& one, const Request& other) {
            return one.number < other.number;
        });
        for (Request& one : done_) cache.release(one);
        done_.clear();
    }

private:
    Batch going_;  // those of the batch that are not done
    std::vector<Request> done_;
};

class Orca final : public Policy {
public:
    using Policy::Policy;

    void schedule(Batch& step) override {
        for (Request* request : running) {
            if (!more_in(step)) break;
            step.emplace_back(request, request->lacks());
        }
        while (more_may_run() && more_in(step)) {
            if (!cache.start(*waiting.front(), own.longest)) break;
            Request& request = admit();
            step.emplace_back(&request, request.lacks());
        }
    }
};

class TrtLlm final : public Policy {
public:
    using Policy::Policy;

    void schedule(Batch& step) override {
        std::int64_t left = budget();
        bool paused = false;
        for (std::size_t at = 0; at < running.size() && left && more_in(step); ++at) {
            Request* request = running[at];
            const std::int64_t tokens = std::min(request->lacks(), left);
            const auto held = [&] { return cache.hold(*request, request->computed + tokens); };
            if (!make_room(at, held, paused)) break;
            step.emplace_back(request, tokens);
            left -= tokens;
        }
        while (!paused && left && more_may_run() && more_in(step)) {
            Request& request = *waiting.front();
            const std::int64_t found = cache.match(request);
            const std::int64_t tokens = std::min(request.known - found, left);
            if (tokens < request.known - found && !own.chunked) break;
            if (!cache.start(request, own.no_evict ? request.end - 1 : found + tokens)) break;
            admit();
            step.emplace_back(&request, tokens);
            left -= tokens;
        }
    }
};

class SgLang final : public Policy {
public:
    SgLang(const Options& options, Cache& cache) : Policy(options, cache), ratio_(options.share) {}

    void schedule(Batch& step) override {
        prompts(step);
        if (step.empty()) decodes(step);
    }

private:
    // As in triosim/serving/engines/sglang.py, with their meaning.
    static constexpr double least = 0.14, decay_steps = 600;
    static constexpr std::int64_t retract_steps = 20, most_to_come = 4096;

    static std::int64_t to_come(const Request& request) { return std::min(request.remaining(), most_to_come); }

    void prompts(Batch& step) {
        std::int64_t left = budget();
        for (Request* request : running) {
            if (request->decoding()) continue;
            const std::int64_t tokens = std::min(request->lacks(), left);
            step.emplace_back(request, tokens);
            left -= tokens;
        }
        if (!left || !more_may_run() || !more_in(step)) return;
        double kept = 0;
        for (const Request* request : running) kept += static_cast<double>(to_come(*request)) * ratio_;
        double free = static_cast<double>(cache.free * cache.size) - kept;
        while (left && more_may_run() && more_in(step)) {
            Request& request = *waiting.front();
            free -= static_cast<double>(request.known - cache.match(request) + to_come(request));
            if ((free < 0 && !running.empty()) || !cache.start(request, request.known)) break;
            admit();
            const std::int64_t tokens = std::min(request.lacks(), left);
            step.emplace_back(&request, tokens);
            left -= tokens;
        }
    }

    void decodes(Batch& step) {
        if (!running.empty() && cache.free < needed(running, 1)) retract();
        ratio_ = std::max(ratio_ - own.share * (1 - least) / decay_steps, own.share * least);
        std::size_t asked = 0;
        for (Request* request : running) {
            if (static_cast<std::int64_t>(asked++) >= std::max(own.max_running, std::int64_t{1})) break;
            if (cache.hold(*request, request->known)) step.emplace_back(request, 1);
        }
    }

    void retract() {
        std::vector<Request*> ready = running;
        std::stable_sort(ready.begin(), ready.end(), [](const Request* one, const Request* other) {
            return std::pair(one->known - one->prompt, -one->prompt) <
                   std::pair(other->known - other->prompt, -other->prompt);
        });
        std::size_t gone = 0;
        while (ready.size() - gone > 1 &&
               cache.free < needed(std::span(ready).subspan(gone), retract_steps))
            preempt(ready[gone++]);
        std::int64_t told = 0, all = 0;
        for (const Request* request : std::span(ready).subspan(gone)) {
            told += request->known - request->prompt + retract_steps;
            all += request->end - request->prompt;
        }
        ratio_ = std::min(1.0, static_cast<double>(told) / static_cast<double>(all));
    }

    // Blocks that so many more decode steps take.
    std::int64_t needed(std::span<Request* const> requests, std::int64_t steps) const {
        std::int64_t blocks = 0;
        for (const Request* request : requests)
            blocks += cache.needs(*request, std::min(request->known + steps - 1, request->end - 1));
        return blocks;
    }

    double ratio_;
};

}  // namespace triosim::serving
