// Max-min fair sharing where nearly every change reaches nearly every flow: everyone sends to everyone.
//
// `fill` of triosim.engine.solvers.max_min finds levels in ascending order, and what a link does at one level depends on
// the levels below only.  So a change leaves alone what lies below the lowest level that it can move, and the rest is
// filled again from there:
//   * a flow that leaves touched nothing below its own rate;
//   * a flow that joins gets no less than the least that one of its links can give it, whatever others then do.
// Nothing is kept of a flow but the links that it crosses, in the rows of these links, those that a link holds first:
// taking a level back, and giving it, is going once along a part of a row.
//
// Links inside a network often carry as much as all links that feed them (`drop`): they are never overloaded and are
// left out of the rows.  They may be full all the same, by what rounding leaves; as maxmin.hpp shows this takes two
// different rates on the link that are no further apart than the weights on it.  Only then they are looked at
// (`suspect`), and one that does hold flows back is put in again.
#pragma once

#include <functional>
#include <utility>

#include "network.hpp"

namespace triosim {

class Levels {
public:
    struct Move {
        std::int32_t slot, link;  // the flow has its bottleneck on this link now
    };
    struct Level {
        std::int64_t rate;
        std::int32_t link;
    };
    static constexpr std::size_t LONGEST = 8;  // links of a route: the memory of a flow grows as its square
    static constexpr std::size_t LINK = 16;    // what a link takes to fill, in flows

    // Every flow must count once on each of its links.
    Levels(const Roads& roads, const Traffic& traffic)
        : roads_(roads), routes_(roads.routes()), traffic_(traffic), rows_(roads.capacity.size()),
          room_(roads.capacity.size() + 1), dropped_(roads.capacity.size(), false) {
        drop();
    }

    // Whether routes are short enough.
    bool able() const { return longest_ <= LONGEST; }

    // Take over the flows that are there, each with its bottleneck so far (-1 if it has none).
    void begin(Column<Move> flows) {
        for (const std::int32_t link : active_) row(link) = Row{};
        active_.clear();
        order_.clear();
        flows_there_ = 0;
        for (std::size_t link = 0; link < rows_.size(); ++link) room_[link] = {unsign(roads_.capacity[link]), 0, 1};
        for (const auto& [slot, bottleneck] : flows) {
            enter(slot);
            if (bottleneck != NONE && !dropped(bottleneck)) claim(slot, bottleneck);
        }
        for (const std::int32_t link : active_) room(link).free = static_cast<std::uint32_t>(row(link).slots.size());
        from_ = 0;
    }

    void leave(std::int32_t slot) {
        const std::int64_t rate = row(flow(slot).holder).rate;
        from_ = std::min(from_, rate);
        for (const Crossed& crossed : links(slot)) {
            room(crossed.link).rest += unsign(rate);
            strike(crossed.link, crossed.place);
        }
        --flows_there_;
    }

    void join(std::int32_t slot) {
        enter(slot);
        std::int64_t least = std::numeric_limits<std::int64_t>::max();
        for (const Crossed& crossed : links(slot)) {
            const Row& own = row(crossed.link);
            Room& here = room(crossed.link);
            const std::int64_t joining = ++here.free;
            // Either all others keep what they have, or those held here share that with the newcomers; less what may
            // be lost where flows of the same rate wait for each other, which is one for each (see P(s) in maxmin.hpp).
            const auto all = static_cast<std::int64_t>(own.slots.size());
            std::int64_t own_least = (here.left() - all) / joining;
            if (own.held != 0) {
                own_least = std::min(own.rate, std::max(own_least, (own.rate * own.held - all) / (own.held + joining)));
            }
            least = std::min(least, own_least);
        }
        from_ = std::min(from_, least);
    }

    // Fill again what can have changed; afterwards moves() and changed() tell what is new.
    void fill() {
        moves_.clear();
        refill();
        for (std::int32_t link = suspect(); link != NONE; link = suspect()) {
            put_in(link);
            refill();
        }
        from_ = std::numeric_limits<std::int64_t>::max();
    }

    // Of the last filling: what has another bottleneck, in the order of happening; the links that hold flows at levels
    // that may be new, in ascending order.
    Column<Move> moves() const { return moves_; }
    Column<Level> changed() const { return Column<Level>(order_).subspan(kept_); }

    std::int64_t rate(std::int32_t link) const { return rows_[static_cast<std::size_t>(link)].rate; }

    // What the last filling had to look at: flows, and links with their weight in time.
    std::size_t effort() const { return effort_; }

private:
    static constexpr std::int32_t NONE = -1;

    struct Room {
        std::uint64_t rest;         // capacity that the flows with a rate leave
        std::uint32_t free, open;  // flows that have no rate yet; whether (1 or 0) the link may give them one

        std::int64_t left() const { return static_cast<std::int64_t>(rest); }
        std::int64_t share() const { return std::max<std::int64_t>(left() / static_cast<std::int64_t>(free), 1); }
    };
    struct Row {                           // of a link
        std::vector<std::int32_t> slots;   // flows on it, first those that it holds
        std::vector<std::int32_t> others;  // beside `slots`, stride_ for each: the other links of the flow
        std::int32_t held = 0;
        std::int64_t rate = 0;  // of those that it holds
        bool active = false;    // whether it is among active_
    };
    struct Crossed {
        std::int32_t link, place;  // place in its row
    };
    struct Flow {
        std::int32_t holder, links;
    };
    using Share = std::pair<std::int64_t, std::int32_t>;  // of a link, and which

    static std::uint64_t unsign(std::int64_t value) { return static_cast<std::uint64_t>(value); }

    Row& row(std::int32_t link) { return rows_[static_cast<std::size_t>(link)]; }
    Room& room(std::int32_t link) { return room_[static_cast<std::size_t>(link)]; }
    Flow& flow(std::int32_t slot) { return flows_[static_cast<std::size_t>(slot)]; }
    bool dropped(std::int32_t link) const { return dropped_[static_cast<std::size_t>(link)]; }
    std::span<Crossed> links(std::int32_t slot) {
        const auto at = static_cast<std::size_t>(slot);
        return {&crossed_[at * longest_], static_cast<std::size_t>(flows_[at].links)};
    }

    // ---------------------------------------------------------------------------------------- rows

    void enter(std::int32_t slot) {
        const auto at = static_cast<std::size_t>(slot);
        if (at >= flows_.size()) {
            flows_.resize(std::max(at + 1, 2 * flows_.size()));
            crossed_.resize(flows_.size() * longest_);
        }
        flows_[at] = {NONE, 0};
        for (const Hop& hop : traffic_.hops(slot)) {
            if (dropped(hop.link)) continue;
            const auto end = static_cast<std::int32_t>(row(hop.link).slots.size());
            crossed_[at * longest_ + static_cast<std::size_t>(flows_[at].links++)] = {hop.link, end};
        }
        for (const Crossed& here : links(slot)) {
            Row& row = this->row(here.link);
            if (!std::exchange(row.active, true)) active_.push_back(here.link);
            row.slots.push_back(slot);
            std::size_t others = 0;
            for (const Crossed& other : links(slot)) {
                if (other.link == here.link) continue;
                row.others.push_back(other.link);
                ++others;
            }
            for (; others < stride(); ++others) row.others.push_back(nowhere());
        }
        ++flows_there_;
    }

    std::size_t stride() const { return std::max<std::size_t>(longest_, 2) - 1; }
    std::int32_t nowhere() const { return static_cast<std::int32_t>(rows_.size()); }  // its room is always open

    void swap(std::int32_t link, std::int32_t one, std::int32_t other) {
        if (one == other) return;
        Row& row = this->row(link);
        const auto a = static_cast<std::size_t>(one), b = static_cast<std::size_t>(other);
        std::swap(row.slots[a], row.slots[b]);
        for (std::size_t k = 0; k < stride(); ++k) std::swap(row.others[a * stride() + k], row.others[b * stride() + k]);
        place(row.slots[a], link) = one;
        place(row.slots[b], link) = other;
    }

    std::int32_t& place(std::int32_t slot, std::int32_t link) {
        Crossed* crossed = links(slot).data();
        while (crossed->link != link) ++crossed;
        return crossed->place;
    }

    void claim(std::int32_t slot, std::int32_t link) {
        swap(link, place(slot, link), row(link).held++);
        flow(slot).holder = link;
    }

    void give_up(std::int32_t slot) {
        const std::int32_t link = flow(slot).holder;
        if (link != NONE) swap(link, place(slot, link), --row(link).held);
    }

    void strike(std::int32_t link, std::int32_t place) {
        Row& row = this->row(link);
        if (place < row.held) {
            --row.held;
            swap(link, place, row.held);
            place = row.held;
        }
        swap(link, place, static_cast<std::int32_t>(row.slots.size()) - 1);
        row.slots.pop_back();
        row.others.resize(row.slots.size() * stride());
    }

    // ------------------------------------------------------------------------------------- filling

    void refill() {
        room_.back() = {0, 0, 1};
        kept_ = static_cast<std::size_t>(std::ranges::lower_bound(order_, from_, {}, &Level::rate) - order_.begin());
        effort_ = 0;
        for (const Level& level : Column<Level>(order_).subspan(kept_)) take_back(level.link);
        order_.resize(kept_);
        shares_.clear();
        for (const std::int32_t link : active_) {
            const Room& here = room(link);
            if (here.open != 0 && here.free != 0) shares_.emplace_back(here.share(), link);
        }
        effort_ += LINK * shares_.size();
        std::ranges::make_heap(shares_, std::greater<>{});
        while (!shares_.empty()) {
            const std::int64_t level = shares_.front().first;
            full_.clear();
            while (!shares_.empty() && shares_.front().first == level) {
                const std::int32_t link = shares_.front().second;
                const Room& here = room(link);
                const std::int64_t grown = here.free == 0 ? 0 : here.share();  // flows may have got less since
                if (grown > level) {
                    shares_.front().first = grown;
                } else {
                    if (grown == level) full_.push_back(link);
                    shares_.front() = shares_.back();
                    shares_.pop_back();
                }
                sink();
            }
            for (const std::int32_t link : full_) give(link, level);
        }
    }

    // The flows that a link holds have no rate any more.
    void take_back(std::int32_t link) {
        const Row& row = this->row(link);
        const auto held = static_cast<std::uint32_t>(row.held);
        const std::uint64_t rate = unsign(row.rate);
        for (const std::int32_t other : Column<std::int32_t>(row.others).first(held * stride())) {
            Room& there = room(other);
            there.rest += rate;
            ++there.free;
        }
        Room& here = room(link);
        here.rest += rate * held;
        here.free += held;
        here.open = 1;
        effort_ += held;
    }

    // A link is full at this level: so it is for all flows on it that have no rate yet.
    void give(std::int32_t link, std::int64_t level) {
        Room& here = room(link);
        if (here.free == 0) return;
        Row& row = this->row(link);
        for (auto i = row.held; static_cast<std::uint32_t>(row.held) < here.free; ++i) {
            if (!open(row, i)) continue;
            const std::int32_t slot = row.slots[static_cast<std::size_t>(i)];
            give_up(slot);
            claim(slot, link);
            moves_.push_back({slot, link});
        }
        for (const std::int32_t other : Column<std::int32_t>(row.others).first(here.free * stride())) {
            Room& there = room(other);
            there.rest -= unsign(level);
            --there.free;
        }
        effort_ += here.free;
        here.rest -= unsign(level) * here.free;
        here.free = 0;
        here.open = 0;
        row.rate = level;
        order_.push_back({level, link});
    }

    // Whether a flow on this link, held elsewhere, has no rate yet.
    bool open(const Row& row, std::int32_t at) const {
        const auto others = Column<std::int32_t>(row.others).subspan(static_cast<std::size_t>(at) * stride(), stride());
        return std::ranges::all_of(others, [this](auto link) { return room_[static_cast<std::size_t>(link)].open != 0; });
    }

    // Put the first share, which has grown, where it belongs in the heap.
    void sink() {
        const std::size_t size = shares_.size();
        for (std::size_t at = 0, child = 1; child < size; child = 2 * at + 1) {
            if (child + 1 < size && shares_[child + 1] < shares_[child]) ++child;
            if (shares_[at] <= shares_[child]) return;
            std::swap(shares_[at], shares_[child]);
            at = child;
        }
    }

    // ------------------------------------------------------------------------- links that are left out

    // Leave out the links that carry all that can come to them from the first links of their routes, or all that can
    // go from them to the last ones; but none that another is left out for.
    void drop() {
        std::vector<bool> needed(rows_.size(), false);
        for (const bool first : {true, false}) {
            const std::vector<std::pair<std::int32_t, std::int32_t>> pairs = ends(first);
            for (std::size_t i = 0, end = 0; i < pairs.size(); i = end) {
                const std::int32_t link = pairs[i].first;
                Work sum = 0;
                bool can = !needed[static_cast<std::size_t>(link)];
                for (end = i; end < pairs.size() && pairs[end].first == link; ++end) {
                    can = can && pairs[end].second != link && !dropped(pairs[end].second);
                    sum += roads_.capacity[static_cast<std::size_t>(pairs[end].second)];
                }
                if (!can || sum > roads_.capacity[static_cast<std::size_t>(link)]) continue;
                dropped_[static_cast<std::size_t>(link)] = true;
                for (std::size_t k = i; k < end; ++k) needed[static_cast<std::size_t>(pairs[k].second)] = true;
            }
        }
        measure();
    }

    // Each link with each link that routes over it begin with, or end with, sorted.
    std::vector<std::pair<std::int32_t, std::int32_t>> ends(bool first) const {
        std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
        std::vector<std::int32_t> last(rows_.size(), NONE);
        for (std::int32_t route = 0; route < routes_; ++route) {
            const auto hops = roads_.hops(route);
            if (hops.empty()) continue;
            const std::int32_t end = first ? hops.front().link : hops.back().link;
            for (const Hop& hop : hops) {
                if (std::exchange(last[static_cast<std::size_t>(hop.link)], end) != end) pairs.emplace_back(hop.link, end);
            }
        }
        std::ranges::sort(pairs);
        pairs.erase(std::ranges::unique(pairs).begin(), pairs.end());
        return pairs;
    }

    void measure() {
        longest_ = 1;
        any_dropped_ = std::ranges::find(dropped_, true) != dropped_.end();
        for (std::int32_t route = 0; route < routes_; ++route) {
            const auto count = std::ranges::count_if(roads_.hops(route), [this](auto hop) { return !dropped(hop.link); });
            longest_ = std::max(longest_, static_cast<std::size_t>(count));
        }
    }

    // A link that was left out and holds flows back after all, -1 if none does.
    std::int32_t suspect() {
        if (!any_dropped_ || order_.empty()) return NONE;
        // The highest rate that lies so near above another; where one is 1, even links that feed others may carry more
        // than they can.
        std::int64_t highest = order_.front().rate == 1 ? order_.back().rate : 0;
        for (std::size_t i = order_.size(); --i > 0 && highest == 0;) {
            const std::int64_t apart = order_[i].rate - order_[i - 1].rate;
            if (apart != 0 && apart <= flows_there_) highest = order_[i].rate;
        }
        if (highest == 0) return NONE;
        for (std::size_t link = 0; link < rows_.size(); ++link) {
            if (dropped_[link] && holds_back(static_cast<std::int32_t>(link), highest)) return static_cast<std::int32_t>(link);
        }
        return NONE;
    }

    // Whether a link is full below the largest rate on it, if that is no more than `highest`: P(s) of maxmin.hpp.
    bool holds_back(std::int32_t link, std::int64_t highest) {
        rates_.clear();
        Work rest = roads_.capacity[static_cast<std::size_t>(link)];
        for (const auto& crossing : traffic_.on(link)) {
            rates_.push_back(row(flow(crossing.slot).holder).rate);
            if (rates_.back() > highest) return false;
            rest -= rates_.back();
        }
        const auto all = static_cast<std::int64_t>(rates_.size());
        if (rest >= all) return false;
        std::ranges::sort(rates_, std::greater<>{});
        if (rest < 0) return rates_.front() > 1;
        Work load = 0;
        for (std::int64_t above = 0, end = 0; above < all; above = end) {
            const std::int64_t rate = rates_[static_cast<std::size_t>(above)];
            const Work over = load - (Work{rate} + 1) * above;  // of the rates above
            if (over >= all) return false;
            for (end = above; end < all && rates_[static_cast<std::size_t>(end)] == rate; ++end) load += rate;
            if (above != 0 && end - above - over > rest) return true;
        }
        return false;
    }

    void put_in(std::int32_t link) {
        dropped_[static_cast<std::size_t>(link)] = false;
        std::vector<Move> there;
        for (const std::int32_t holder : active_) {
            for (std::int32_t i = 0; i < row(holder).held; ++i) {
                there.push_back({row(holder).slots[static_cast<std::size_t>(i)], holder});
            }
        }
        measure();
        crossed_.resize(flows_.size() * longest_);
        begin(there);
    }

    const Roads& roads_;
    const std::int32_t routes_;
    const Traffic& traffic_;
    std::vector<Row> rows_;           // by link
    std::vector<Room> room_;          // by link, and one for links that are not there
    std::vector<bool> dropped_;       // by link
    bool any_dropped_ = false;
    std::vector<Flow> flows_;         // by slot
    std::vector<Crossed> crossed_;    // of each slot longest_
    std::vector<std::int32_t> active_;  // links that have had flows
    std::vector<Level> order_;        // links that hold flows, by level
    std::vector<Move> moves_;
    std::vector<Share> shares_;       // a heap, the smallest first
    std::vector<std::int32_t> full_;
    std::vector<std::int64_t> rates_;
    std::size_t longest_ = 1, kept_ = 0, effort_ = 0;
    std::int64_t from_ = 0;           // levels below stay
    std::int64_t flows_there_ = 0;
};

}  // namespace triosim
