// What must hold of a graph before it is played, so that nothing is read or written outside its columns.  Only whether:
// triosim/engine/check.py says what is wrong and where.
#pragma once

#include <algorithm>

#include "graph.hpp"

namespace triosim {

template <class T>
bool within(Column<T> column, std::int64_t low, std::int64_t end) {
    bool good = true;
    for (const T value : column) good &= value >= low && value < end;
    return good;
}

template <class T>
bool at_least(Column<T> column, std::int64_t low) {
    return std::ranges::all_of(column, [low](T value) { return value >= low; });
}

// Offsets that go up from 0 to the number of values.
template <class T>
bool well_formed(const Ragged<T>& rows) {
    return !rows.offsets.empty() && rows.offsets.front() == 0 && std::ranges::is_sorted(rows.offsets) &&
           rows.offsets.back() == static_cast<std::int64_t>(rows.values.size());
}

constexpr std::int64_t MOST = std::int64_t{1} << 30;  // what an event of the engine can name

inline bool check(const Wires& wires) {
    const auto links = static_cast<std::int64_t>(wires.capacity.size());
    if (!well_formed(wires.routes) || !within(wires.routes.values, 0, links)) return false;
    if (wires.latency.size() != wires.routes.size() || !at_least(wires.latency, 0)) return false;
    if (!std::ranges::all_of(wires.capacity, [](auto limit) { return limit >= 1 || limit == UNLIMITED; })) return false;
    if (!wires.weights.empty() && wires.weights.size() != wires.routes.values.size()) return false;
    if (!at_least(wires.weights, 1)) return false;
    std::vector<std::int64_t> crossed(wires.capacity.size(), -1);  // the last route that crosses each link
    for (std::size_t route = 0; route < wires.routes.size(); ++route) {
        for (const std::int32_t link : wires.routes[route]) {
            std::int64_t& last = crossed[static_cast<std::size_t>(link)];
            if (last == static_cast<std::int64_t>(route)) return false;
            last = static_cast<std::int64_t>(route);
        }
    }
    return true;
}

inline bool check(const Pattern& pattern) {
    const auto edges = static_cast<std::int64_t>(pattern.size());
    for (const std::size_t size : {pattern.target.size(), pattern.bytes.size(), pattern.count.size(),
                                   pattern.pause.size(), pattern.needs.size()}) {
        if (size != pattern.size()) return false;
    }
    return pattern.members >= 1 && pattern.places >= pattern.members && pattern.places < MOST && edges < MOST &&
           static_cast<std::int64_t>(pattern.needs.values.size()) < MOST && well_formed(pattern.needs) &&
           pattern.lag.size() == pattern.needs.values.size() && at_least(pattern.lag, ALL) &&
           within(pattern.needs.values, 0, edges) && within(pattern.source, 0, pattern.places) &&
           within(pattern.target, 0, pattern.places) && at_least(pattern.bytes, 0) && at_least(pattern.count, 1) &&
           at_least(pattern.pause, 0);
}

// Whether tasks refer to what is there, and no two are the same member of a collective.
inline bool check_references(const Graph& graph, std::int64_t routes) {
    std::vector<std::int64_t> first{0};  // of the members of each instance
    for (const std::int32_t row : graph.instances) {
        first.push_back(first.back() + graph.patterns[graph.collectives[static_cast<std::size_t>(row)].pattern].members);
    }
    if (first.back() >= MOST) return false;
    std::vector<bool> there(static_cast<std::size_t>(first.back()), false);
    for (std::size_t task = 0; task < graph.size(); ++task) {
        const auto kind = static_cast<Task>(graph.kind[task]);
        if (kind == Task::compute || kind == Task::join) continue;
        const std::int64_t what = graph.what[task];
        const auto count = kind == Task::transfer     ? routes
                           : kind == Task::collective ? static_cast<std::int64_t>(graph.instances.size())
                                                      : static_cast<std::int64_t>(graph.tokens.size());
        if (what < 0 || what >= count) return false;
        if (kind != Task::collective) continue;
        const auto at = static_cast<std::size_t>(what);
        const std::int64_t place = first[at] + graph.member[task];
        if (graph.member[task] < 0 || place >= first[at + 1] || there[static_cast<std::size_t>(place)]) return false;
        there[static_cast<std::size_t>(place)] = true;
    }
    return true;
}

inline bool check(const Graph& graph, const Wires& wires) {
    const std::size_t rows = graph.size();
    for (const std::size_t size : {graph.stream.size(), graph.amount.size(), graph.what.size(), graph.member.size(),
                                   graph.before.size(), graph.need.empty() ? rows : graph.need.size()}) {
        if (size != rows) return false;
    }
    if (static_cast<std::int64_t>(rows) >= MOST || graph.streams < 0 || graph.streams >= MOST) return false;
    if (!check(wires) || !well_formed(graph.before)) return false;
    if (!within(graph.kind, 0, KINDS) || !within(graph.stream, -1, graph.streams) || !at_least(graph.amount, 0) ||
        !within(graph.before.values, 0, static_cast<std::int64_t>(rows)) || !within(graph.tokens, 0, std::int64_t{1} << 62)) {
        return false;
    }
    for (std::size_t task = 0; task < graph.need.size(); ++task) {
        if (graph.need[task] < 0 || static_cast<std::size_t>(graph.need[task]) > graph.before[task].size()) return false;
    }
    const auto routes = static_cast<std::int64_t>(wires.routes.size());
    for (const Pattern& one : graph.patterns) {
        if (!check(one)) return false;
    }
    for (const Collective& one : graph.collectives) {
        if (one.delay < 0 || one.route.size() != graph.patterns[one.pattern].size() || !within(one.route, 0, routes)) {
            return false;
        }
    }
    return within(graph.instances, 0, static_cast<std::int64_t>(graph.collectives.size())) &&
           check_references(graph, routes);
}

}  // namespace triosim
