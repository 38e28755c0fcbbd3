// A graph played again with other durations, many draws side by side: triosim/engine/longest_path.py in C++.
//
// Transfers take what they took when the network was shared, times a factor, so that what remains is the longest way
// through the tasks: one maximum for each dependency and one sum for each task, in LANES draws at once.  An end is kept
// only until the last that waits for it has read it, so that what is worked with stays close to the processor.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "graph.hpp"

namespace triosim {

constexpr std::size_t LANES = 8;
using Lanes = std::array<double, LANES>;

// Tasks, and one more node for each collective that is run, at which its members wait for each other; in an order in
// which nothing comes before what it waits for.
class LongestWay {
public:
    // fixed, shared: ticks of each task that never change, and those that go with the links (for what computes: 0).
    // kind: the column of factors that a task's fixed ticks are multiplied by, or -1.  at: tasks whose ends are asked for.
    // All must live as long as this.
    LongestWay(const Graph& graph, Column<std::int32_t> kind, Column<double> fixed, Column<double> shared,
               Column<std::int64_t> at)
        : kind_(kind), fixed_(fixed), shared_(shared) {
        const Waits waits(graph);
        std::vector<std::int32_t> unread(waits.nodes, 0);  // who has not read the end of each node yet
        for (std::size_t node = 0; node < waits.nodes; ++node) {
            waits.each(node, [&](std::int32_t other) { ++unread[static_cast<std::size_t>(other)]; });
        }
        for (const std::int64_t task : at) ++unread[static_cast<std::size_t>(task)];  // one more, so that it is kept
        slot_.assign(waits.nodes, UNSEEN);
        nodes_.reserve(waits.nodes);
        needs_.reserve(waits.edges);
        for (std::size_t node = 0; node < waits.nodes && complete_; ++node) {
            go_to(static_cast<std::int32_t>(node), waits, unread);
        }
        if (complete_) {
            for (const std::int64_t task : at) asked_.push_back(slot_[static_cast<std::size_t>(task)]);
        }
        slot_ = {};
    }

    bool complete() const { return complete_; }

    // Ends of LANES draws: the last of all, and of each task that is asked for.  finish: what is worked with, any Lanes.
    void play(std::span<const Lanes> factors, const Lanes& links, Lanes& end, std::span<Lanes> ends,
              std::vector<Lanes>& finish) const {
        finish.resize(slots_);
        end.fill(0);
        const std::int32_t* need = needs_.data();
        for (const Node& node : nodes_) {
            Lanes now{};
            for (const std::int32_t* last = need + node.needs; need != last; ++need) {
                const Lanes& before = finish[static_cast<std::size_t>(*need)];
                for (std::size_t lane = 0; lane < LANES; ++lane) now[lane] = std::max(now[lane], before[lane]);
            }
            if (const auto task = static_cast<std::size_t>(node.row); task < kind_.size()) {
                const double fixed = fixed_[task], shared = shared_[task];
                if (const std::int32_t kind = kind_[task]; kind >= 0) {
                    const Lanes& factor = factors[static_cast<std::size_t>(kind)];
                    for (std::size_t lane = 0; lane < LANES; ++lane) now[lane] += fixed * factor[lane];
                } else {
                    for (std::size_t lane = 0; lane < LANES; ++lane) now[lane] += fixed + shared * links[lane];
                }
            }
            finish[static_cast<std::size_t>(node.slot)] = now;
            for (std::size_t lane = 0; lane < LANES; ++lane) end[lane] = std::max(end[lane], now[lane]);
        }
        for (std::size_t i = 0; i < asked_.size(); ++i) ends[i] = finish[static_cast<std::size_t>(asked_[i])];
    }

private:
    static constexpr std::int32_t UNSEEN = -1, OPEN = -2;  // in slot_: of what is not placed yet, and what waits to be

    struct Node {
        std::int32_t row, needs, slot;  // row: the task, or tasks and then collectives; needs: how many it waits for
    };

    // What each node waits for: read off the graph, and not written down.
    struct Waits {
        explicit Waits(const Graph& of)
            : graph(of), nodes(of.size() + of.instances.size()), held(of.size(), -1), first(of.instances.size() + 1, 0) {
            std::vector<std::int32_t> last(static_cast<std::size_t>(graph.streams), -1);
            for (std::size_t task = 0; task < graph.size(); ++task) {
                if (const std::int32_t stream = graph.stream[task]; stream >= 0) {
                    held[task] = std::exchange(last[static_cast<std::size_t>(stream)], static_cast<std::int32_t>(task));
                    edges += held[task] >= 0;
                }
                if (meets(task)) ++first[static_cast<std::size_t>(graph.what[task]) + 1];
            }
            for (std::size_t instance = 0; instance + 1 < first.size(); ++instance) first[instance + 1] += first[instance];
            members.resize(static_cast<std::size_t>(first.back()));
            std::vector<std::int32_t> next(first.begin(), first.end() - 1);
            for (std::size_t task = 0; task < graph.size(); ++task) {
                if (!meets(task)) continue;
                members[static_cast<std::size_t>(next[static_cast<std::size_t>(graph.what[task])]++)] =
                    static_cast<std::int32_t>(task);
            }
            edges += graph.before.values.size() + members.size();
        }

        bool meets(std::size_t task) const { return static_cast<Task>(graph.kind[task]) == Task::collective; }

        // A member of a collective waits for the collective, and that for all that its members wait for.
        template <class Call>
        void each(std::size_t node, Call call) const {
            if (node < graph.size()) {
                if (meets(node)) return call(static_cast<std::int32_t>(graph.size()) + graph.what[node]);
                return each_of(node, call);
            }
            const std::size_t instance = node - graph.size();
            for (std::int32_t i = first[instance]; i < first[instance + 1]; ++i) {
                each_of(static_cast<std::size_t>(members[static_cast<std::size_t>(i)]), call);
            }
        }

        template <class Call>
        void each_of(std::size_t task, Call call) const {
            for (const std::int32_t other : graph.before[task]) call(other);
            if (held[task] >= 0) call(held[task]);
        }

        const Graph& graph;
        std::size_t nodes, edges = 0;
        std::vector<std::int32_t> held;            // the task before each on its stream, -1 if there is none
        std::vector<std::int32_t> first, members;  // tasks of each collective that is run
    };

    // Place a node after all that it waits for, and so on, so that what follows each other lies close together.  Not
    // complete where some of them wait in a circle.
    void go_to(std::int32_t node, const Waits& waits, std::vector<std::int32_t>& unread) {
        const auto state = [&](std::int32_t of) -> std::int32_t& { return slot_[static_cast<std::size_t>(of)]; };
        road_.push_back(node);
        while (!road_.empty()) {
            const std::int32_t next = road_.back();
            if (next < 0) {
                road_.pop_back();
                place(~next, waits, unread);
                continue;
            }
            if (state(next) != UNSEEN) {
                road_.pop_back();
                continue;
            }
            state(next) = OPEN;
            road_.back() = ~next;
            waits.each(static_cast<std::size_t>(next), [&](std::int32_t other) {
                if (state(other) == UNSEEN) road_.push_back(other);
                complete_ = complete_ && state(other) != OPEN;
            });
            if (!complete_) return;
        }
    }

    void place(std::int32_t node, const Waits& waits, std::vector<std::int32_t>& unread) {
        std::int32_t needs = 0;
        waits.each(static_cast<std::size_t>(node), [&](std::int32_t other) {
            const auto source = static_cast<std::size_t>(other);
            needs_.push_back(slot_[source]);
            if (--unread[source] == 0) free_.push_back(slot_[source]);
            ++needs;
        });
        if (free_.empty()) free_.push_back(static_cast<std::int32_t>(slots_++));
        slot_[static_cast<std::size_t>(node)] = free_.back();
        nodes_.push_back({node, needs, free_.back()});
        if (unread[static_cast<std::size_t>(node)] > 0) free_.pop_back();
    }

    const Column<std::int32_t> kind_;
    const Column<double> fixed_, shared_;
    std::size_t slots_ = 0;
    bool complete_ = true;
    std::vector<Node> nodes_;
    std::vector<std::int32_t> needs_;  // slots of ends, of all nodes one after another
    std::vector<std::int32_t> asked_;  // the same of the tasks that are asked for
    std::vector<std::int32_t> slot_, free_, road_;  // while nodes are placed: of each; not used; to go to, ~ to be placed
};

}  // namespace triosim
