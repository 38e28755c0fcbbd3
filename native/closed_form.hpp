// When the edges of a collective that shares no link have delivered everything, without playing it: rings, pipelines, and
// what becomes of rings whose members are folded.  triosim/engine/isolated_collective.py derives the formulas.
#pragma once

#include <algorithm>
#include <optional>

#include "pattern.hpp"

namespace triosim {

// Edges that need each other in circles, each one other with lag 1.
inline bool is_ring(const Edges& edges) {
    for (std::size_t edge = 0; edge < edges.of.size(); ++edge) {
        const auto needs = edges.needs(edge);
        if (needs.size() != 1 || needs[0].lag != 1 || edges.needed_by(edge).size() != 1) return false;
        if (edges.of.count[edge] != edges.of.count[static_cast<std::size_t>(needs[0].edge)]) return false;
    }
    return true;
}

// Edges that follow each other, each at most one other with lag 0.
inline bool is_pipeline(const Edges& edges) {
    for (std::size_t edge = 0; edge < edges.of.size(); ++edge) {
        const auto needs = edges.needs(edge);
        if (needs.size() > 1 || (needs.size() == 1 && needs[0].lag != 0)) return false;
        if (!needs.empty() && edges.of.count[edge] != edges.of.count[static_cast<std::size_t>(needs[0].edge)]) return false;
    }
    return true;
}

// The heaviest walk of count - 1 moves that ends at each edge, where each move stays or comes from the edge that is
// needed.  A walk stays, if anywhere, at the slowest edge that it visits.
inline std::vector<Tick> ring_ends(const Edges& edges, Column<Tick> lasts) {
    auto needed = [&](std::size_t edge) { return static_cast<std::size_t>(edges.needs(edge)[0].edge); };
    std::vector<Tick> ends(lasts.size()), top(lasts.size(), NEVER);
    for (std::size_t edge = 0; edge < lasts.size(); ++edge) {
        if (top[edge] != NEVER) continue;
        std::vector<std::size_t> circle{edge};
        while (needed(circle.back()) != edge) circle.push_back(needed(circle.back()));
        Tick slowest = 0;
        for (const std::size_t other : circle) slowest = std::max(slowest, lasts[other]);
        for (const std::size_t other : circle) top[other] = slowest;
    }
    for (std::size_t edge = 0; edge < lasts.size(); ++edge) {
        const Tick moves = edges.of.count[edge] - 1;
        Tick walked = lasts[edge], slowest = lasts[edge];
        ends[edge] = walked + moves * slowest;
        std::size_t there = needed(edge);
        for (Tick i = 1; i <= moves && slowest < top[edge]; ++i, there = needed(there)) {
            walked += lasts[there];
            if (lasts[there] <= slowest) continue;
            slowest = lasts[there];
            ends[edge] = std::max(ends[edge], walked + (moves - i) * slowest);
        }
    }
    return ends;
}

// Edges that need any others, each with lag 1, and go on equally often.
inline bool is_in_step(const Edges& edges) {
    for (std::size_t edge = 0; edge < edges.of.size(); ++edge) {
        if (edges.of.count[edge] != edges.of.count[0]) return false;
        if (std::ranges::any_of(edges.needs(edge), [](const auto& need) { return need.lag != 1; })) return false;
    }
    return true;
}

// The same walks where an edge may come from several.  One goes to its slowest edge on no way with a circle, for which it
// could have stayed there as long, and stays.  Nothing where playing it takes no longer than to look at all of them.
inline std::optional<std::vector<Tick>> walk_ends(const Edges& edges, Column<Tick> lasts) {
    const std::size_t size = lasts.size();
    const Tick moves = edges.of.count[0] - 1;
    const auto longest = static_cast<std::size_t>(std::min<Tick>(moves, static_cast<Tick>(size) - 1));
    if (longest * edges.of.needs.values.size() > static_cast<std::size_t>(moves)) return std::nullopt;
    std::vector<Tick> ends(size, 0), walked(size), further(size);
    for (std::size_t edge = 0; edge < size; ++edge) {
        std::ranges::fill(walked, NEVER);
        walked[edge] = lasts[edge];
        for (std::size_t i = 0;; ++i) {
            for (std::size_t there = 0; there < size; ++there) {
                if (walked[there] == NEVER) continue;
                ends[edge] = std::max(ends[edge], walked[there] + (moves - static_cast<Tick>(i)) * lasts[there]);
            }
            if (i == longest) break;
            std::ranges::fill(further, NEVER);
            for (std::size_t there = 0; there < size; ++there) {
                if (walked[there] == NEVER) continue;
                for (const auto& need : edges.needs(there)) {
                    const auto other = static_cast<std::size_t>(need.edge);
                    further[other] = std::max(further[other], walked[there] + lasts[other]);
                }
            }
            walked.swap(further);
        }
    }
    return ends;
}

// What all edges up to this one take for the first transfer, and the slowest of them for each further one.  Nothing if
// edges wait in a circle.
inline std::optional<std::vector<Tick>> pipeline_ends(const Edges& edges, Column<Tick> lasts) {
    std::vector<Tick> upto(lasts.begin(), lasts.end()), slowest(lasts.begin(), lasts.end());
    std::vector<std::size_t> ahead;
    for (std::size_t edge = 0; edge < lasts.size(); ++edge) {
        if (edges.needs(edge).empty()) ahead.push_back(edge);
    }
    for (std::size_t i = 0; i < ahead.size(); ++i) {
        for (const auto& need : edges.needed_by(ahead[i])) {
            const auto other = static_cast<std::size_t>(need.edge);
            upto[other] += upto[ahead[i]];
            slowest[other] = std::max(slowest[other], slowest[ahead[i]]);
            ahead.push_back(other);
        }
    }
    if (ahead.size() < lasts.size()) return std::nullopt;
    for (std::size_t edge = 0; edge < lasts.size(); ++edge) upto[edge] += (edges.of.count[edge] - 1) * slowest[edge];
    return upto;
}

// When each member has finished, counted from the first transfer, and when the last delivery of all is, which may be to
// a place that is no member.
struct Ends {
    std::vector<Tick> members;
    Tick last;
};

// Nothing if there is no closed form.
inline std::optional<Ends> closed_form(const Edges& edges, Column<Tick> lasts) {
    const Pattern& pattern = edges.of;
    Work most = 0;  // what would come if everything waited for everything
    for (std::size_t edge = 0; edge < lasts.size(); ++edge) most += Work{lasts[edge]} * pattern.count[edge];
    if (most >= BEYOND) return std::nullopt;
    std::optional<std::vector<Tick>> delivered;
    if (is_ring(edges)) delivered = ring_ends(edges, lasts);
    else if (is_pipeline(edges)) delivered = pipeline_ends(edges, lasts);
    else if (is_in_step(edges)) delivered = walk_ends(edges, lasts);
    if (!delivered) return std::nullopt;
    std::vector<Tick> ends(static_cast<std::size_t>(pattern.places), 0);
    for (std::size_t edge = 0; edge < lasts.size(); ++edge) {
        for (const std::int32_t position : {pattern.source[edge], pattern.target[edge]}) {
            Tick& end = ends[static_cast<std::size_t>(position)];
            end = std::max(end, (*delivered)[edge]);
        }
    }
    const Tick last = ends.empty() ? 0 : std::ranges::max(ends);
    ends.resize(static_cast<std::size_t>(pattern.members));
    return Ends{std::move(ends), last};
}

}  // namespace triosim
