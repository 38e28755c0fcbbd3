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
    LongestWay(const Graph& graph, Column<std::int32_t> kind, Column<double> fixed, Column<double> shared,
               Column<std::int64_t> at)
        : tasks_(graph.size()) {
        const std::size_t nodes = tasks_ + graph.instances.size();
        std::vector<Successors::Edge> edges;
        edges.reserve(graph.before.values.size() + 2 * tasks_);
        std::vector<std::int32_t> last(static_cast<std::size_t>(graph.streams), -1);
        for (std::size_t task = 0; task < tasks_; ++task) {
            const auto number = static_cast<std::int32_t>(task);
            std::int32_t waits = number;
            if (static_cast<Task>(graph.kind[task]) == Task::collective) {
                waits = static_cast<std::int32_t>(tasks_) + graph.what[task];
                edges.push_back({waits, number});
            }
            for (const std::int32_t before : graph.before[task]) edges.push_back({before, waits});
            if (const std::int32_t stream = graph.stream[task]; stream >= 0) {
                std::int32_t& before = last[static_cast<std::size_t>(stream)];
                if (before >= 0) edges.push_back({before, waits});
                before = number;
            }
        }
        order(nodes, edges, kind, fixed, shared, at);
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
            if (node.kind >= 0) {
                const Lanes& factor = factors[static_cast<std::size_t>(node.kind)];
                for (std::size_t lane = 0; lane < LANES; ++lane) now[lane] += node.fixed * factor[lane];
            } else {
                for (std::size_t lane = 0; lane < LANES; ++lane) now[lane] += node.fixed + node.shared * links[lane];
            }
            finish[static_cast<std::size_t>(node.slot)] = now;
            for (std::size_t lane = 0; lane < LANES; ++lane) end[lane] = std::max(end[lane], now[lane]);
        }
        for (std::size_t i = 0; i < asked_.size(); ++i) ends[i] = finish[static_cast<std::size_t>(asked_[i])];
    }

private:
    struct Node {
        double fixed, shared;
        std::int32_t kind, needs, slot;
    };

    void order(std::size_t nodes, const std::vector<Successors::Edge>& edges, Column<std::int32_t> kind,
               Column<double> fixed, Column<double> shared, Column<std::int64_t> at) {
        const Successors after(nodes, edges);
        std::vector<std::int32_t> waits(nodes, 0);
        for (const Successors::Edge& edge : edges) ++waits[static_cast<std::size_t>(edge.target)];
        std::vector<std::int32_t> ready, of;
        of.reserve(nodes);
        for (std::size_t node = nodes; node-- > 0;) {
            if (waits[node] == 0) ready.push_back(static_cast<std::int32_t>(node));
        }
        while (!ready.empty()) {  // the newest first, so that what follows each other lies close together
            const std::int32_t node = ready.back();
            ready.pop_back();
            of.push_back(node);
            for (const std::int32_t next : after[node]) {
                if (--waits[static_cast<std::size_t>(next)] == 0) ready.push_back(next);
            }
        }
        complete_ = of.size() == nodes;
        if (!complete_) return;
        std::vector<std::int64_t> first(nodes + 1, 0);
        for (const Successors::Edge& edge : edges) ++first[static_cast<std::size_t>(edge.target) + 1];
        for (std::size_t node = 0; node < nodes; ++node) first[node + 1] += first[node];
        std::vector<std::int32_t> sources(edges.size());
        std::vector<std::int64_t> next(first.begin(), first.end() - 1);
        for (const Successors::Edge& edge : edges) {
            sources[static_cast<std::size_t>(next[static_cast<std::size_t>(edge.target)]++)] = edge.source;
        }
        std::vector<std::int32_t>& unread = waits;  // of each node: who has not read its end yet, one more where it is kept
        for (std::size_t node = 0; node < nodes; ++node) {
            unread[node] = static_cast<std::int32_t>(after[static_cast<std::int32_t>(node)].size());
        }
        for (const std::int64_t task : at) ++unread[static_cast<std::size_t>(task)];
        std::vector<std::int32_t> slot(nodes, 0), free;
        nodes_.reserve(nodes);
        needs_.reserve(edges.size());
        for (const std::int32_t node : of) {
            const auto row = static_cast<std::size_t>(node);
            Node made{0, 0, -1, static_cast<std::int32_t>(first[row + 1] - first[row]), 0};
            for (auto i = first[row]; i < first[row + 1]; ++i) {
                const auto source = static_cast<std::size_t>(sources[static_cast<std::size_t>(i)]);
                needs_.push_back(slot[source]);
                if (--unread[source] == 0) free.push_back(slot[source]);
            }
            if (free.empty()) free.push_back(static_cast<std::int32_t>(slots_++));
            made.slot = slot[row] = free.back();
            if (unread[row] > 0) free.pop_back();
            if (row < tasks_) {
                made.fixed = fixed[row];
                made.shared = shared[row];
                made.kind = kind[row];
            }
            nodes_.push_back(made);
        }
        for (const std::int64_t task : at) asked_.push_back(slot[static_cast<std::size_t>(task)]);
    }

    std::size_t tasks_, slots_ = 0;
    bool complete_ = false;
    std::vector<Node> nodes_;
    std::vector<std::int32_t> needs_;  // slots of ends, of all nodes one after another
    std::vector<std::int32_t> asked_;  // the same of the tasks that are asked for
};

}  // namespace triosim
