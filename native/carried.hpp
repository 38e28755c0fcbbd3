// What links carry in a run, whenever that happens.
#pragma once

#include <algorithm>
#include <limits>

#include "graph.hpp"

namespace triosim {

constexpr Work MUCH = Work{1} << 64;  // more than can be counted, however often it counts

struct Carried {
    std::int64_t flows = 0;  // transfers
    std::int64_t over = -1;  // the first link that carries more than can be counted, -1 if none does
};

// Bytes on each link are added to link_bytes, each weight counting.
inline Carried carried(const Graph& graph, const Wires& wires, std::span<std::int64_t> link_bytes) {
    std::vector<Work> route_bytes(wires.routes.size(), 0), crossing(wires.capacity.size(), 0);
    std::vector<std::int64_t> runs(graph.collectives.size(), 0);
    std::vector<bool> run(graph.instances.size(), false);
    Work flows = 0;
    for (std::size_t task = 0; task < graph.size(); ++task) {
        const auto kind = static_cast<Task>(graph.kind[task]);
        const auto what = static_cast<std::size_t>(graph.what[task]);
        if (kind == Task::transfer) {
            ++flows;
            route_bytes[what] += graph.amount[task];
        } else if (kind == Task::collective && !run[what]) {
            run[what] = true;
            ++runs[static_cast<std::size_t>(graph.instances[what])];
        }
    }
    for (std::size_t row = 0; row < runs.size(); ++row) {
        const Collective& collective = graph.collectives[row];
        const Pattern& pattern = graph.patterns[collective.pattern];
        for (std::size_t edge = 0; edge < pattern.size() && runs[row] > 0; ++edge) {
            const Work transfers = Work{runs[row]} * pattern.count[edge];
            flows += transfers;
            route_bytes[static_cast<std::size_t>(collective.route[edge])] += transfers * pattern.bytes[edge];
        }
    }
    for (std::size_t route = 0; route < route_bytes.size(); ++route) {
        if (route_bytes[route] == 0) continue;
        for (auto i = wires.routes.offsets[route]; i < wires.routes.offsets[route + 1]; ++i) {
            const auto at = static_cast<std::size_t>(i);
            const Work weight = wires.weights.empty() ? 1 : wires.weights[at];
            crossing[static_cast<std::size_t>(wires.routes.values[at])] += std::min(route_bytes[route], MUCH) * weight;
        }
    }
    constexpr Work most = std::numeric_limits<std::int64_t>::max();
    Carried sums{static_cast<std::int64_t>(std::min(flows, most)), -1};
    for (std::size_t link = crossing.size(); link-- > 0;) {
        if (crossing[link] > most) sums.over = static_cast<std::int64_t>(link);
        link_bytes[link] = static_cast<std::int64_t>(std::min(crossing[link], most));
    }
    return sums;
}

}  // namespace triosim
