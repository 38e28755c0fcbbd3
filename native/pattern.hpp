// How a collective moves through its pattern: triosim.engine.pattern_state in C++.
#pragma once

#include "graph.hpp"

namespace triosim {

// A pattern as the state machine walks it: besides what each edge needs, which edges need it.
class Edges {
public:
    struct Need {
        std::int32_t edge, lag;
    };

    explicit Edges(const Pattern& pattern) : of(pattern), first_(pattern.size() + 1), first_needed_(pattern.size() + 1, 0) {
        for (const std::int32_t edge : pattern.needs.values) ++first_needed_[static_cast<std::size_t>(edge)];
        std::int32_t end = 0;
        for (std::int32_t& first : first_needed_) first = end += first;
        needs_.resize(pattern.needs.values.size());
        needed_.resize(pattern.needs.values.size());
        for (std::size_t edge = pattern.size(); edge-- > 0;) {
            first_[edge + 1] = static_cast<std::int32_t>(pattern.needs.offsets[edge + 1]);
            for (auto i = static_cast<std::size_t>(first_[edge + 1]);
                 i-- > static_cast<std::size_t>(pattern.needs.offsets[edge]);) {
                needs_[i] = {pattern.needs.values[i], pattern.lag[i]};
                const std::int32_t place = --first_needed_[static_cast<std::size_t>(pattern.needs.values[i])];
                needed_[static_cast<std::size_t>(place)] = {static_cast<std::int32_t>(edge), pattern.lag[i]};
            }
        }
    }

    Column<Need> needs(std::size_t edge) const { return row(needs_, first_, edge); }
    Column<Need> needed_by(std::size_t edge) const { return row(needed_, first_needed_, edge); }

    const Pattern& of;

private:
    static Column<Need> row(const std::vector<Need>& flat, const std::vector<std::int32_t>& first, std::size_t edge) {
        return {flat.data() + first[edge], static_cast<std::size_t>(first[edge + 1] - first[edge])};
    }

    std::vector<std::int32_t> first_, first_needed_;
    std::vector<Need> needs_, needed_;
};

// How many transfers of an edge with `count` must have been delivered before `transfer` of one that needs it may start.
inline std::int32_t enough(std::int32_t transfer, std::int32_t lag, std::int32_t count) {
    if (lag == ALL || transfer - lag >= count) return count;
    return std::max(transfer - lag + 1, 0);
}

// Where each edge of one running collective is.  Its memory are the edges, not the transfers.
class Progress {
public:
    explicit Progress(const Edges& edges)
        : edges_(&edges), at_(edges.of.size()), open_(static_cast<std::size_t>(edges.of.places), 0) {
        for (std::size_t edge = 0; edge < at_.size(); ++edge) at_[edge] = {0, edges.of.count[edge], 0};
        for (std::size_t edge = 0; edge < at_.size(); ++edge) {
            at_[edge].missing = missing(edge);
            ++open(edges.of.source[edge]);
            ++open(edges.of.target[edge]);
        }
    }

    // Whether an edge has a transfer under way: then it waits for nothing.
    bool flying(std::size_t edge) const { return at_[edge].missing == 0 && at_[edge].delivered < at_[edge].count; }
    bool finished(std::int32_t position) const { return open_[static_cast<std::size_t>(position)] == 0; }
    bool complete() const { return complete_ == at_.size(); }

    // The transfer that an edge has under way has been delivered: calls starts(edge) for the edges whose next transfer
    // starts, and finishes(position) for the members that have sent and received everything.
    template <class Starts, class Finishes>
    void next(std::size_t edge, Starts starts, Finishes finishes) {
        Edge& own = at_[edge];
        ++own.delivered;
        for (const auto& [other, lag] : edges_->needed_by(edge)) {
            const auto number = static_cast<std::size_t>(other);
            Edge& waits = at_[number];
            if (number == edge || waits.delivered >= waits.count) continue;
            if (own.delivered == enough(waits.delivered, lag, own.count) && --waits.missing == 0) starts(number);
        }
        if (own.delivered < own.count) {
            own.missing = missing(edge);
            if (own.missing == 0) starts(edge);
            return;
        }
        ++complete_;
        for (const std::int32_t position : {edges_->of.source[edge], edges_->of.target[edge]}) {
            if (--open(position) == 0 && position < edges_->of.members) finishes(position);
        }
    }

private:
    struct Edge {
        std::int32_t delivered, count;  // transfers
        std::int32_t missing;           // edges that it needs and that have not come far enough
    };

    std::int32_t missing(std::size_t edge) const {
        std::int32_t missing = 0;
        for (const auto& [other, lag] : edges_->needs(edge)) {
            const Edge& needed = at_[static_cast<std::size_t>(other)];
            missing += needed.delivered < enough(at_[edge].delivered, lag, needed.count);
        }
        return missing;
    }

    std::int32_t& open(std::int32_t position) { return open_[static_cast<std::size_t>(position)]; }

    const Edges* edges_;
    std::vector<Edge> at_;
    std::vector<std::int32_t> open_;  // of each position: edges from and to it that are not complete
    std::size_t complete_ = 0;
};

// A collective that shares no link, played transfer by transfer without asking anyone: each lasts as long as it would
// on its own.
class Replay {
public:
    // lasts: ticks of each transfer of each edge from its start to its delivery.
    Replay(const Edges& edges, Column<Tick> lasts)
        : progress(edges), started(edges.of.size(), 0), ends(static_cast<std::size_t>(edges.of.members), 0),
          lasts_(lasts) {
        for (std::size_t edge = 0; edge < lasts.size(); ++edge) {
            if (progress.flying(edge)) queue_.push(lasts[edge], edge);
        }
    }

    // Go on until everything due by this tick, counted from the first transfer, has been delivered.  poll() is called
    // now and then.
    template <class Poll>
    void play(Tick until, Poll poll) {
        bool more = true;
        std::size_t delivered = 0;
        while (more && queue_.now() <= until) {
            const Tick now = queue_.now();
            if (!queue_.present().empty()) last = now;
            for (std::size_t i = 0; i < queue_.present().size(); ++i) {
                progress.next(
                    queue_.present()[i].what,
                    [&](std::size_t edge) {
                        started[edge] = now;
                        queue_.push(later(now, lasts_[edge]), edge);
                    },
                    [&](std::int32_t position) { ends[static_cast<std::size_t>(position)] = now; });
            }
            if (const std::size_t before = delivered; (delivered += queue_.present().size()) >> 20 != before >> 20) poll();
            more = queue_.advance() && queue_.now() < BEYOND;
        }
    }

    Progress progress;
    std::vector<Tick> started;  // of each edge: when the last of its transfers that has started did
    std::vector<Tick> ends;     // of each member: when it has finished
    Tick last = 0;              // of all deliveries so far

private:
    Column<Tick> lasts_;
    RadixHeap queue_;
};

}  // namespace triosim
