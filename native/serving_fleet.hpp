// Replicas under traffic: the loops of triosim/serving/fleet.py and triosim/serving/replica.py, whose rules these are.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "serving_policies.hpp"
#include "serving_samples.hpp"
#include "serving_steps.hpp"
#include "serving_times.hpp"

namespace triosim::serving {

// What becomes of each request; see triosim.serving.fleet.FleetRun.
class Outcome {
public:
    virtual ~Outcome() = default;
    virtual void ended(const Request& request, std::int64_t replica, std::int64_t now) = 0;
};

class Replica : public CountedSteps {
public:
    Replica(std::unique_ptr<Cache> cache, std::unique_ptr<Policy> policy, Times& times, Samples gaps)
        : CountedSteps(times, std::move(gaps)), cache(std::move(cache)), policy(std::move(policy)) {}

    std::unique_ptr<Cache> cache;
    std::unique_ptr<Policy> policy;

    std::int64_t match(const Request& request) const { return cache->match(request); }

    void arrive(Request& request) {
        ++outstanding;
        if (policy->own.ahead) {
            coming_.push_back(&request);
        } else {
            policy->waiting.push_back(&request);
        }
    }

    // The end of the step that begins, -1 if none does.
    std::int64_t start(std::int64_t now, std::int64_t horizon) {
        if (in_flight) return -1;
        batch_.clear();
        policy->schedule(batch_);
        if (batch_.empty() && !coming_.empty()) {  // nothing was scheduled ahead
            see();
            policy->schedule(batch_);
        }
        if (batch_.empty()) return -1;
        taken(now);
        const auto count = static_cast<std::int64_t>(batch_.size());
        const bool alone = shape_.decodes == count && batch_.size() == policy->running.size();
        const bool steady = policy->own.steady && coming_.empty() && !(cache->reuses && !policy->waiting.empty());
        if (alone && steady) now = decoded(batch_, Known{*cache}, cache->free - count, cache->size, now, horizon);
        const std::int64_t end = begun(count, now, policy->own.ahead);
        see();
        return end;
    }

    template <class Finished>
    void end(std::int64_t now, Finished finished) {
        in_flight = false;
        bool some = false;
        std::int64_t gap = 0, times = 0;
        for (const auto& [request, count] : batch_) {
            request->last_end = now;
            request->computed += count;
            if (cache->reuses) cache->store(*request);
            if (request->computed < request->known) continue;
            ++request->known;
            if (request->first_token < 0) {
                request->first_token = now;
            } else if (now - request->last_token == gap) {
                ++times;
            } else {
                gaps.add(gap, times);
                gap = now - request->last_token;
                times = 1;
            }
            request->last_token = now;
            if (request->known == request->end) {
                some = true;
                --outstanding;
                policy->finish(*request);
            }
        }
        gaps.add(gap, times);
        if (!some) return;
        std::erase_if(policy->running, [](const Request* request) { return request->known == request->end; });
        for (const auto& [request, count] : batch_)
            if (request->known == request->end) finished(*request);
    }

private:
    void see() {
        policy->waiting.insert(policy->waiting.end(), coming_.begin(), coming_.end());
        coming_.clear();
    }

    void taken(std::int64_t now) {
        shape_ = {0, 0, 0, 0, std::move(shape_.chunks)};
        shape_.chunks.clear();
        for (const auto& [request, count] : batch_) {
            const std::int64_t computed = request->computed + count;
            if (count < 1 || computed > request->known || request->blocks * cache->size < computed)
                throw GiveUp("a broken rule");
            shape_.tokens += count;
            if (request->last_end >= 0) {
                request->waited += now - request->last_end;
            } else if (request->scheduled < 0) {
                request->scheduled = now;
            }
            shape_.sampled += computed == request->known;
            if (request->decoding()) {
                ++shape_.decodes;
                shape_.context += request->known;
            } else {
                shape_.chunks.emplace_back(count, request->computed);
            }
        }
        if (policy->own.max_tokens >= 0 && shape_.tokens > policy->own.max_tokens) throw GiveUp("a broken rule");
    }

    // Requests as C++ has them.
    struct Known {
        Cache& cache;

        std::int64_t last_token(const Request* request) const { return request->last_token; }
        std::int64_t left(const Request* request) const { return request->end - request->known - 1; }
        void go_on(Request* request, std::int64_t steps, std::int64_t now) const {
            request->known += steps;
            request->computed += steps;
            request->last_end = request->last_token = now;
            if (!cache.hold(*request, request->known)) throw GiveUp("blocks were counted before");
            if (cache.reuses) cache.store(*request);
        }
    };

    std::vector<Request*> coming_;
    Batch batch_;
};

// Which replica serves whom: as is said for each arrival, the less loaded of two, or as the loads are.
struct Routing {
    enum Kind { chosen, pairs, least_outstanding, prefix_aware, session } kind = chosen;
    std::span<const std::int64_t> choices;  // by arrival a replica, or two; by row the conversation
    std::int64_t slack = 0;
};

// Tokens of each request, in columns of either width.
struct Counts {
    std::span<const std::int64_t> wide;
    std::span<const std::int32_t> narrow;

    std::size_t size() const { return wide.size() + narrow.size(); }
    std::int64_t operator[](std::size_t row) const { return narrow.empty() ? wide[row] : narrow[row]; }
};

// Of replicas whose policies are in C++, or of those whose policies Python has (serving_asked_replica.hpp).
template <class AnyReplica>
class Fleet {
public:
    Fleet(std::vector<AnyReplica>& replicas, const Routing& routing, const BlockKeys& keys, Outcome& out)
        : replicas_(replicas), routing_(routing), keys_(keys), out_(out) {}
    Fleet(const Fleet&) = delete;
    Fleet& operator=(const Fleet&) = delete;
    // A run that ends before all requests have leaves objects of Python's with them.
    ~Fleet() {
        if constexpr (requires(Request& request) { AnyReplica::forget(request); }) {
            for (Request& request : requests_) AnyReplica::forget(request);
        }
    }

    // Columns of the requests: see triosim.serving.requests.RequestTable.  Told now and then how many have arrived.
    void play(
        std::span<const std::int64_t> arrived, const Counts& prompt, const Counts& output,
        std::span<const std::int64_t> follows,
        const std::function<void(std::int64_t)>& told) {
        const auto count = static_cast<std::int64_t>(arrived.size());
        std::vector<std::int64_t> next_of, follower;  // who waits for whom: a list for each row
        if (!follows.empty()) {
            next_of.assign(count, -1);
            follower.assign(count, -1);
            for (std::int64_t row = count - 1; row >= 0; --row)
                if (follows[row] >= 0) next_of[row] = std::exchange(follower[follows[row]], row);
        }
        const bool foreseen = follows.empty() || replicas_.size() == 1;
        Heap later, ends;
        std::int64_t first = 0, number = 0;
        const auto skip = [&] {
            while (first < count && !follows.empty() && follows[first] >= 0) ++first;
        };
        const auto next = [&]() -> std::int64_t {
            const std::int64_t one = first < count ? arrived[first] : never;
            return later.empty() ? one : std::min(one, later.top().first);
        };
        skip();
        std::vector<bool> touched(replicas_.size());
        std::vector<std::int64_t> starts;
        const auto touch = [&](std::int64_t at) {
            if (!touched[at]) starts.push_back(at);
            touched[at] = true;
        };
        while (true) {
            const std::int64_t now = std::min(next(), ends.empty() ? never : ends.top().first);
            if (now == never) break;
            while (!ends.empty() && ends.top().first == now) {
                const std::int64_t at = ends.top().second;
                ends.pop();
                replicas_[at].end(now, [&](Request& request) {
                    out_.ended(request, at, now);
                    unused_.push_back(&request);
                    if (follows.empty()) return;
                    for (std::int64_t row = follower[request.row]; row >= 0; row = next_of[row]) {
                        std::int64_t when = 0;
                        if (__builtin_add_overflow(now, arrived[row], &when)) throw GiveUp("too long");
                        later.emplace(when, row);
                    }
                });
                touch(at);
            }
            while (next() == now) {
                std::int64_t row = first;
                const bool from_later = first >= count || arrived[first] != now ||
                                        (!later.empty() && later.top() < std::pair(now, first));
                if (from_later) {
                    row = later.top().second;
                    later.pop();
                } else {
                    ++first;
                    skip();
                }
                Request& request = fresh();
                request.row = row;
                request.number = number;
                request.arrived = now;
                request.prompt = request.known = request.prefill = prompt[row];
                request.end = prompt[row] + output[row];
                request.keys = request.end / keys_.size;
                request.shared = std::min(keys_.shared(request), request.keys);
                if constexpr (requires { replicas_[0].known(request); }) replicas_[0].known(request);
                const std::int64_t at = route(request);
                replicas_[at].arrive(request);
                touch(at);
                if (number % 1024 == 0) told(number);
                ++number;
            }
            const std::int64_t horizon = foreseen ? next() : 0;
            for (const std::int64_t at : starts) {
                const std::int64_t end = replicas_[at].start(now, horizon);
                if (end >= 0) ends.emplace(end, at);
                touched[at] = false;
                if (++started_ % (1 << 16) == 0) told(-1);
            }
            starts.clear();
        }
        for (const AnyReplica& replica : replicas_)
            if (replica.outstanding) throw GiveUp("nobody is scheduled for ever");
    }

private:
    using Moment = std::pair<std::int64_t, std::int64_t>;  // when, and which row or replica
    using Heap = std::priority_queue<Moment, std::vector<Moment>, std::greater<>>;

    Request& fresh() {
        if (unused_.empty()) return requests_.emplace_back();
        Request* request = unused_.back();
        unused_.pop_back();
        std::vector<std::int32_t> held = std::move(request->held), windowed = std::move(request->held_windowed);
        *request = Request{};
        request->held = std::move(held);
        request->held_windowed = std::move(windowed);
        return *request;
    }

    std::int64_t route(const Request& request) {
        const auto load = [&](std::int64_t at) { return replicas_[at].outstanding; };
        const auto count = static_cast<std::int64_t>(replicas_.size());
        if (count == 1) return 0;
        if (routing_.kind == Routing::chosen) return routing_.choices[request.number];
        if (routing_.kind == Routing::pairs) {
            const std::int64_t one = routing_.choices[2 * request.number], other = routing_.choices[2 * request.number + 1];
            return load(other) < load(one) ? other : one;
        }
        const std::int64_t session = routing_.kind == Routing::session ? routing_.choices[request.row] : -1;
        if (session >= 0 && homes_.has(session)) return homes_.at(session);
        std::int64_t least = 0;
        for (std::int64_t at = 1; at < count; ++at)
            if (load(at) < load(least)) least = at;
        if (session >= 0) homes_.emplace(session, least);
        if (routing_.kind != Routing::prefix_aware) return least;
        std::int64_t best = -1;
        std::pair<std::int64_t, std::int64_t> score;
        for (std::int64_t at = 0; at < count; ++at) {
            if (load(at) > load(least) + routing_.slack) continue;
            const std::pair own(replicas_[at].match(request), -load(at));
            if (best < 0 || own > score) {
                best = at;
                score = own;
            }
        }
        return best;
    }

    std::vector<AnyReplica>& replicas_;
    const Routing& routing_;
    const BlockKeys& keys_;
    Outcome& out_;
    std::deque<Request> requests_;  // which stay where they are
    std::vector<Request*> unused_;
    KeyTable<std::int64_t> homes_;
    std::int64_t started_ = 0;
};

}  // namespace triosim::serving
