// The collectives of a run: who is still missing, and how those that run are played.
//
// One that shares no link with anything is not played at all: when its members finish is worked out once for all that
// are alike.  It is turned into flows at the very tick at which another flow comes onto one of its links.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "closed_form.hpp"

namespace triosim {

// Host is the engine:
//   now(), poll(), finish(task), until_join(route), busy(link), flow(route, work, instance, edge),
//   schedule_begin(tick, instance), schedule_end(tick, instance), schedule_step(tick, instance, edge).
template <class Host>
class Collectives {
public:
    Collectives(Host& host, const Graph& graph, const Roads& roads, bool alone, bool formulas)
        : host_(host), graph_(graph), roads_(roads), alone_(alone), formulas_(formulas), edges_(graph.patterns.size()),
          plans_(graph.collectives.size()) {
        instances_.reserve(graph.instances.size());
        std::int32_t first = 0;
        for (const std::int32_t row : graph.instances) {
            const auto members = static_cast<std::int32_t>(pattern(row).members);
            instances_.push_back({0, nullptr, row, members, first, 0});
            first += members;
        }
        tasks_.resize(static_cast<std::size_t>(first), NONE);
        claimed_.resize(roads.capacity.size(), NONE);
    }

    // A member has come.
    void gather(std::int32_t task, std::int32_t instance, std::int32_t member, Tick ready) {
        Instance& one = at(instance);
        tasks_[static_cast<std::size_t>(one.first + member)] = task;
        one.begin = std::max(one.begin, ready);
        if (--one.missing == 0) host_.schedule_begin(began(one), instance);
    }

    // When the last of the members came.
    Tick begin_of(std::int32_t instance) const { return instances_[static_cast<std::size_t>(instance)].begin; }

    // All members are there and the delay has passed: the first transfers start.
    void begin(std::int32_t instance) {
        Instance& one = at(instance);
        const Plan& plan = this->plan(one);
        if (!plan.alone || std::ranges::any_of(plan.links, [this](auto link) {
                return host_.busy(link) || claimed_[static_cast<std::size_t>(link)] != NONE;
            })) {
            one.finished = static_cast<std::int32_t>(plan.ends.size());
            one.progress = std::make_unique<Progress>(edges(one));
            return follow(instance, plan);
        }
        for (const std::int32_t link : plan.links) claimed_[static_cast<std::size_t>(link)] = instance;
        claims_ += plan.links.size();
        host_.schedule_end(later(host_.now(), plan.ends.front().first), instance);
    }

    // Some members of a collective that is alone have finished, unless it is played flow by flow by now.
    void end(std::int32_t instance) {
        Instance& one = at(instance);
        const Plan& plan = this->plan(one);
        if (!finish_due(one, plan)) return;
        if (one.finished == static_cast<std::int32_t>(plan.ends.size())) return release(plan);
        host_.schedule_end(later(began(one), plan.ends[static_cast<std::size_t>(one.finished)].first), instance);
    }

    // A transfer of an edge starts to use its links; so much of its work has been done already.
    void step(std::int32_t instance, std::size_t edge, Work served = 0) {
        const Instance& one = at(instance);
        const Plan& plan = this->plan(one);
        if (plan.work[edge] == 0) return delivered(instance, edge);
        const std::int32_t route = graph_.collectives[static_cast<std::size_t>(one.collective)].route[edge];
        host_.flow(route, plan.work[edge] - served, instance, static_cast<std::int32_t>(edge));
    }

    void delivered(std::int32_t instance, std::size_t edge) {
        Instance& one = at(instance);
        const Plan& plan = this->plan(one);
        one.progress->next(
            edge, [&](std::size_t other) { start(instance, plan, other); },
            [&](std::int32_t member) { finish(one, member); });
        if (one.progress->complete()) one.progress.reset();
    }

    // A flow comes onto a link: what had it for itself is played flow by flow from now on.
    void enter(std::int32_t link) {
        if (claims_ == 0 || claimed_[static_cast<std::size_t>(link)] == NONE) return;
        const std::int32_t instance = claimed_[static_cast<std::size_t>(link)];
        Instance& one = at(instance);
        const Plan& plan = this->plan(one);
        release(plan);
        Replay replay(edges(one), plan.lasts);
        replay.play(host_.now() - began(one), [this] { host_.poll(); });
        finish_due(one, plan);
        one.finished = static_cast<std::int32_t>(plan.ends.size());
        if (replay.progress.complete()) return;
        one.progress = std::make_unique<Progress>(std::move(replay.progress));
        const auto& route = graph_.collectives[static_cast<std::size_t>(one.collective)].route;
        for (std::size_t edge = 0; edge < plan.lasts.size(); ++edge) {
            if (!one.progress->flying(edge)) continue;
            const Tick joined = began(one) + replay.started[edge] + plan.until_join[edge];
            if (joined > host_.now()) {
                host_.schedule_step(joined, instance, edge);
            } else {
                step(instance, edge, Work{roads_.rate(route[edge])} * (host_.now() - joined));
            }
        }
    }

private:
    static constexpr std::int32_t NONE = -1;

    struct Instance {
        Tick begin;                          // when the last member so far came
        std::unique_ptr<Progress> progress;  // if it is played flow by flow
        std::int32_t collective, missing;
        std::int32_t first;     // of its members in tasks_
        std::int32_t finished;  // how many of Plan::ends have come
    };
    struct Plan {                      // what is known of a collective before it runs
        std::vector<Work> work;        // of each edge what serving a transfer takes, 0 where no link limits
        std::vector<Tick> until_join;  // of each edge from the start of a transfer until it uses its links
        std::vector<Tick> lasts;       // and until it is delivered, if it shares no link
        std::vector<std::int32_t> links;                   // that it must have for itself to be alone
        // When which member finishes after the begin, if it is alone.  Links are its own until the last delivery of all,
        // which comes at the end, as that of no member, where no member waits for it.
        std::vector<std::pair<Tick, std::int32_t>> ends;
        bool alone = false;            // whether it can be; else it must be played flow by flow anyway
    };

    Instance& at(std::int32_t instance) { return instances_[static_cast<std::size_t>(instance)]; }
    const Pattern& pattern(std::int32_t collective) const {
        return graph_.patterns[graph_.collectives[static_cast<std::size_t>(collective)].pattern];
    }
    Tick began(const Instance& one) const {
        return later(one.begin, graph_.collectives[static_cast<std::size_t>(one.collective)].delay);
    }

    void finish(const Instance& one, std::int32_t member) {
        host_.finish(tasks_[static_cast<std::size_t>(one.first + member)]);
    }

    bool finish_due(Instance& one, const Plan& plan) {
        const std::int32_t before = one.finished;
        while (one.finished < static_cast<std::int32_t>(plan.ends.size())) {
            const auto& [ticks, member] = plan.ends[static_cast<std::size_t>(one.finished)];
            if (later(began(one), ticks) > host_.now()) break;
            ++one.finished;
            if (member != NONE) finish(one, member);
        }
        return one.finished > before;
    }

    void start(std::int32_t instance, const Plan& plan, std::size_t edge) {
        host_.schedule_step(later(host_.now(), plan.until_join[edge]), instance, edge);
    }

    void follow(std::int32_t instance, const Plan& plan) {
        Instance& one = at(instance);
        for (std::size_t edge = 0; edge < plan.lasts.size(); ++edge) {
            if (one.progress->flying(edge)) start(instance, plan, edge);
        }
        for (std::int32_t member = 0; member < pattern(one.collective).members; ++member) {
            if (one.progress->finished(member)) finish(one, member);
        }
    }

    void release(const Plan& plan) {
        for (const std::int32_t link : plan.links) claimed_[static_cast<std::size_t>(link)] = NONE;
        claims_ -= plan.links.size();
    }

    const Edges& edges(const Instance& one) {
        const std::size_t pattern = graph_.collectives[static_cast<std::size_t>(one.collective)].pattern;
        if (!edges_[pattern]) edges_[pattern].emplace(graph_.patterns[pattern]);
        return *edges_[pattern];
    }

    const Plan& plan(const Instance& one) {
        auto& plan = plans_[static_cast<std::size_t>(one.collective)];
        if (!plan) plan = std::make_unique<Plan>(planned(one));
        return *plan;
    }

    Plan planned(const Instance& one) {
        const Collective& collective = graph_.collectives[static_cast<std::size_t>(one.collective)];
        const Pattern& pattern = graph_.patterns[collective.pattern];
        Plan plan;
        for (std::size_t edge = 0; edge < pattern.size(); ++edge) {
            const std::int32_t route = collective.route[edge];
            const bool shares = pattern.bytes[edge] > 0 && !roads_.hops(route).empty();
            const Tick latency = shares ? host_.until_join(route) : roads_.latency[static_cast<std::size_t>(route)];
            plan.work.push_back(shares ? pattern.bytes[edge] * WORK_PER_BYTE : 0);
            plan.until_join.push_back(later(pattern.pause[edge], latency));
            plan.lasts.push_back(later(plan.until_join.back(), ticks(plan.work.back(), roads_.rate(route))));
            if (!shares) continue;
            for (const Hop& hop : roads_.hops(route)) plan.links.push_back(hop.link);
        }
        if (alone_ && all_differ(plan.links)) work_out(plan, edges(one));
        return plan;
    }

    static bool all_differ(std::vector<std::int32_t> links) {
        std::ranges::sort(links);
        return std::ranges::adjacent_find(links) == links.end();
    }

    // One whose edges wait in a circle never ends, and is left to be played.
    void work_out(Plan& plan, const Edges& edges) const {
        std::optional<Ends> ends;
        if (formulas_) ends = closed_form(edges, plan.lasts);
        if (!ends) {
            Replay replay(edges, plan.lasts);
            replay.play(BEYOND, [this] { host_.poll(); });
            if (!replay.progress.complete()) return;
            ends = Ends{std::move(replay.ends), replay.last};
        }
        plan.alone = true;
        for (std::size_t member = 0; member < ends->members.size(); ++member) {
            plan.ends.emplace_back(ends->members[member], static_cast<std::int32_t>(member));
        }
        std::ranges::sort(plan.ends);
        if (plan.ends.empty() || plan.ends.back().first < ends->last) plan.ends.emplace_back(ends->last, NONE);
    }

    Host& host_;
    const Graph& graph_;
    const Roads& roads_;
    const bool alone_, formulas_;
    std::vector<std::optional<Edges>> edges_;   // by pattern
    std::vector<std::unique_ptr<Plan>> plans_;  // by collective
    std::vector<Instance> instances_;
    std::vector<std::int32_t> tasks_;    // members of all instances
    std::vector<std::int32_t> claimed_;  // of each link: the instance that has it for itself
    std::size_t claims_ = 0;
};

}  // namespace triosim
