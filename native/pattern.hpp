// How a collective moves through its pattern: triosim.engine.stepped in C++.
#pragma once

#include "graph.hpp"

namespace triosim {

// A pattern as the state machine walks it: besides what each edge needs, which edges need it.
class Edges {
public:
    struct Need {
        std::int32_t edge, lag;
    };

    explicit Edges(const Pattern& pattern) : of(pattern), first_(pattern.size() + 1, 0) {
        for (const std::int32_t edge : pattern.needs.values) ++first_[static_cast<std::size_t>(edge)];
        std::int64_t end = 0;
        for (std::int64_t& first : first_) first = end += first;
        needed_.resize(pattern.needs.values.size());
        for (std::size_t edge = pattern.size(); edge-- > 0;) {
            for (auto i = pattern.needs.offsets[edge + 1]; i-- > pattern.needs.offsets[edge];) {
                const auto at = static_cast<std::size_t>(i);
                const auto place = --first_[static_cast<std::size_t>(pattern.needs.values[at])];
                needed_[static_cast<std::size_t>(place)] = {static_cast<std::int32_t>(edge), pattern.lag[at]};
            }
        }
    }

    Column<Need> needed_by(std::size_t edge) const {
        return {needed_.data() + first_[edge], static_cast<std::size_t>(first_[edge + 1] - first_[edge])};
    }

    const Pattern& of;

private:
    std::vector<std::int64_t> first_;
    std::vector<Need> needed_;
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
        : edges_(&edges), delivered_(edges.of.size(), 0), missing_(edges.of.size()),
          open_(static_cast<std::size_t>(edges.of.places), 0) {
        for (std::size_t edge = 0; edge < delivered_.size(); ++edge) {
            missing_[edge] = missing(edge);
            ++open(edges.of.source[edge]);
            ++open(edges.of.target[edge]);
        }
    }

    // Whether an edge has a transfer under way: then it waits for nothing.
    bool flying(std::size_t edge) const {
        return missing_[edge] == 0 && delivered_[edge] < edges_->of.count[edge];
    }
    bool finished(std::int32_t position) const { return open_[static_cast<std::size_t>(position)] == 0; }

    // The transfer that an edge has under way has been delivered: calls starts(edge) for the edges whose next transfer
    // starts, and finishes(position) for the members that have sent and received everything.
    template <class Starts, class Finishes>
    void next(std::size_t edge, Starts starts, Finishes finishes) {
        const Pattern& pattern = edges_->of;
        const std::int32_t count = pattern.count[edge], done = ++delivered_[edge];
        for (const auto& [other, lag] : edges_->needed_by(edge)) {
            const auto at = static_cast<std::size_t>(other);
            if (at == edge || delivered_[at] >= pattern.count[at] || done != enough(delivered_[at], lag, count)) continue;
            if (--missing_[at] == 0) starts(at);
        }
        if (done < count) {
            missing_[edge] = missing(edge);
            if (missing_[edge] == 0) starts(edge);
            return;
        }
        ++complete_;
        for (const std::int32_t position : {pattern.source[edge], pattern.target[edge]}) {
            if (--open(position) == 0 && position < pattern.members) finishes(position);
        }
    }

    bool complete() const { return complete_ == delivered_.size(); }

private:
    std::int32_t missing(std::size_t edge) const {
        const Pattern& pattern = edges_->of;
        std::int32_t missing = 0;
        for (auto i = pattern.needs.offsets[edge]; i < pattern.needs.offsets[edge + 1]; ++i) {
            const auto at = static_cast<std::size_t>(i);
            const auto other = static_cast<std::size_t>(pattern.needs.values[at]);
            missing += delivered_[other] < enough(delivered_[edge], pattern.lag[at], pattern.count[other]);
        }
        return missing;
    }

    std::int32_t& open(std::int32_t position) { return open_[static_cast<std::size_t>(position)]; }

    const Edges* edges_;
    std::vector<std::int32_t> delivered_;  // transfers of each edge
    std::vector<std::int32_t> missing_;    // of each edge: what it needs that has not come far enough
    std::vector<std::int32_t> open_;       // of each position: edges from and to it that are not complete
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

    // Go on until everything due by this tick, counted from the first transfer, has been delivered.
    void play(Tick until) {
        bool more = true;
        while (more && queue_.now() <= until) {
            const Tick now = queue_.now();
            for (std::size_t i = 0; i < queue_.present().size(); ++i) {
                progress.next(
                    queue_.present()[i].what,
                    [&](std::size_t edge) {
                        started[edge] = now;
                        queue_.push(later(now, lasts_[edge]), edge);
                    },
                    [&](std::int32_t position) { ends[static_cast<std::size_t>(position)] = now; });
            }
            more = queue_.advance() && queue_.now() < BEYOND;
        }
    }

    Progress progress;
    std::vector<Tick> started;  // of each edge: when the last of its transfers that has started did
    std::vector<Tick> ends;     // of each member: when it has finished

private:
    Column<Tick> lasts_;
    RadixHeap queue_;
};

}  // namespace triosim
