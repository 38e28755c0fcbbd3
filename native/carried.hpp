// What links carry in a run, whenever that happens.
#pragma once

#include "graph.hpp"

namespace triosim {

// Bytes on each link are added to link_bytes, each weight counting; returns the number of transfers.
inline std::int64_t carried(const Graph& graph, const Wires& wires, std::span<std::int64_t> link_bytes) {
    std::vector<std::int64_t> route_bytes(wires.routes.size(), 0), runs(graph.collectives.size(), 0);
    std::vector<bool> run(graph.instances.size(), false);
    std::int64_t flows = 0;
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
            const std::int64_t transfers = runs[row] * pattern.count[edge];
            flows += transfers;
            route_bytes[static_cast<std::size_t>(collective.route[edge])] += transfers * pattern.bytes[edge];
        }
    }
    for (std::size_t route = 0; route < route_bytes.size(); ++route) {
        if (route_bytes[route] == 0) continue;
        for (auto i = wires.routes.offsets[route]; i < wires.routes.offsets[route + 1]; ++i) {
            const auto at = static_cast<std::size_t>(i);
            const std::int64_t weight = wires.weights.empty() ? 1 : wires.weights[at];
            link_bytes[static_cast<std::size_t>(wires.routes.values[at])] += route_bytes[route] * weight;
        }
    }
    return flows;
}

}  // namespace triosim
