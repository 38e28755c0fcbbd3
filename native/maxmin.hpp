// Max-min fair sharing in whole numbers, solved again only for the flows that a change does reach ("ripple").
//
// `fill` of triosim.engine.solvers.max_min says what the rates are; this finds the same rates without visiting all
// flows.  Call m the largest rate on a link, W the weights of the flows that have it, and
//
//     P(s) = (sum of rate x weight of flows below s) + (s + 1) (sum of weights of flows at s and above) > capacity,
//
// which says that the link is full at level s: what flows below s leave, shared among the others, gives no more than s.
// Rates are those of `fill` if and only if
//   (1) no link is full below m: P(s) is false for all s < m, from s = 1 on, and
//   (2) every flow has a link, its bottleneck, that is full at its rate, which is m there.
// Proof by induction on the levels of filling: flows with rates below a level being right, (2) gives none less than the
// next share, (1) gives none more that a full link holds, and (2) gives no other flow that share.
//
// If all is within capacity, P(s) can be true only at a rate s that some flow has, and then
//     capacity - load  <  (weights at s) - (sum over rates x > s + 1 of weight x (x - s - 1)):
// never where the rest is at least the sum of weights, and only if m lies less than that sum above the rate below it.
//
// On a change, `chosen` are the flows that join, those that have their bottleneck on a touched link, and those that
// have it where the former cross.  They are filled into what the others leave; then the links of their routes are
// checked for (1) and (2), and the flows that stand in the way are chosen as well, each time with more of those around
// them, until none does.  If all flows are chosen, that is `fill` itself.
//
// Links that can never be the only bottleneck are left out from the beginning (Roads::that_hold).  Where all flows on a
// link cross another one, with no more capacity and no less weight, P(s) there implies P(s) here: (1) holds there if it
// holds here, and who has its bottleneck there has one here.
//
// Where changes reach most flows anyway all this looking around costs more than it saves, and levels.hpp takes over.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "levels.hpp"
#include "service.hpp"

namespace triosim {

class MaxMin : public Network {
public:
    enum class Way { ripples, levels, either, turns };  // how rates are found; all but `either` are for tests

    explicit MaxMin(const Roads& roads, Way way = Way::either)
        : roads_(roads.that_hold()), way_(way), traffic_(roads_), service_(roads.capacity.size()),
          links_(roads.capacity.size()) {
        for (std::size_t link = 0; link < links_.size(); ++link) links_[link].rest = roads.capacity[link];
        weighted_ = roads_.weighted();
    }

    void change(Tick now, Column<Joining> joined, Column<std::int32_t> left, std::vector<Ending>&) override {
        for (const Joining& flow : joined) service_.arrive(flow.slot, flow.work);
        if (by_levels_) {
            change_by_levels(joined, left);
        } else {
            change_by_ripples(joined, left);
        }
        if (by_levels_) {
            tell_levels(now);
            if (--stay_ == 0) leave_levels();
        } else {
            tell_ripples(now);
        }
        service_.foresee();
    }

    Tick next() const override { return service_.next(); }
    void end(Tick now, std::vector<std::int32_t>& ended) override { service_.end(now, ended); }

private:
    static constexpr std::int32_t NONE = -1;

    struct Flow {
        std::int64_t rate = 0, fresh = 0;  // as it is and as it may become
        std::int32_t bottleneck = NONE;    // link
        std::int32_t home = NONE;          // the bottleneck that service_ knows
        std::int32_t own = NONE;           // of near_: the smallest share of links on which no other chosen flow is
        bool chosen = false, fixed = false;  // fixed: `fresh` and `bottleneck` are those of the last filling
        bool there = true;

        std::int64_t now() const { return fixed ? fresh : rate; }
    };
    struct Link {
        std::int64_t rest;        // capacity that no flow has
        std::int32_t held = 0;    // flows that have their bottleneck here and are not chosen
        std::int32_t near = NONE;  // which of near_
    };
    struct Near {  // a link on the route of a chosen flow
        std::int32_t link, first;   // first: its crossings, a list in crossings_
        std::int64_t rest, weight;  // what is left, for chosen flows of this weight that have no rate yet
    };
    struct Crossing {
        std::int32_t slot, next;
    };
    using Share = std::pair<std::int64_t, std::int32_t>;  // of a link, and which of near_

    Flow& flow(std::int32_t slot) { return flows_[static_cast<std::size_t>(slot)]; }
    Link& link(std::int32_t number) { return links_[static_cast<std::size_t>(number)]; }
    Near& near(std::int32_t number) { return near_[static_cast<std::size_t>(number)]; }
    static std::int64_t share(const Near& at) {  // often of one flow, and division is dear
        return std::max<std::int64_t>(at.weight == 1 ? at.rest : at.rest / at.weight, 1);
    }

    // --------------------------------------------------------------------------------------- ripples

    void change_by_ripples(Column<Joining> joined, Column<std::int32_t> left) {
        for (const std::int32_t slot : left) leave(slot);
        for (const Joining& flow : joined) join(flow.slot, flow.route);
        there_ += joined.size();
        there_ -= left.size();
        effort_ = 0;
        const std::size_t limit = effort_of_levels();
        for (const std::int32_t slot : left) choose_held(traffic_.hops(slot));
        for (const Joining& flow : joined) choose_held(traffic_.hops(flow.slot));
        std::size_t asked = joined.size(), settled = 0;  // of chosen_: on whose links all that are held are chosen
        // 3 at first: the fastest of 1, 2 and 3 where links are saturated, and no slower where few flows meet (measured).
        for (int reach = 3; settled < chosen_.size(); reach *= 2) {
            for (int i = 0; i < reach && asked < chosen_.size(); ++i) asked = choose_neighbours(asked);
            settled = chosen_.size();
            if (effort_ > limit && enter_levels()) return levels_->fill();
            fill();
            for (const Near& at : near_) check(at.link, at.rest);
        }
    }

    void leave(std::int32_t slot) {
        Flow& gone = flow(slot);
        gone.there = false;
        for (const Hop& hop : traffic_.hops(slot)) link(hop.link).rest += gone.rate * hop.weight;
        --link(gone.bottleneck).held;
        traffic_.leave(slot);
    }

    void join(std::int32_t slot, std::int32_t route) {
        traffic_.join(slot, route);
        const auto at = static_cast<std::size_t>(slot);
        if (at >= flows_.size()) flows_.resize(std::max(at + 1, 2 * flows_.size()), {.there = false});
        flows_[at] = Flow{};
        flows_[at].chosen = true;
        chosen_.push_back(slot);
    }

    void choose(std::int32_t slot) {
        Flow& more = flow(slot);
        if (more.chosen) return;
        more.chosen = true;
        --link(more.bottleneck).held;
        chosen_.push_back(slot);
    }

    // Choose the flows on a link that are not chosen and of which this is true.
    template <class Which>
    void choose_if(std::int32_t number, Which which) {
        effort_ += traffic_.on(number).size();
        for (const auto& crossing : traffic_.on(number)) {
            if (!flow(crossing.slot).chosen && which(flow(crossing.slot))) choose(crossing.slot);
        }
    }

    void choose_held(Column<Hop> hops) {
        for (const Hop& hop : hops) choose_held(hop.link);
    }
    void choose_held(std::int32_t number) {
        if (link(number).held == 0) return;
        choose_if(number, [number](const Flow& other) { return other.bottleneck == number; });
    }

    // Choose the flows held where the last chosen ones cross: most would have to be chosen in the next round anyway.
    // Returns where those begin.
    std::size_t choose_neighbours(std::size_t from) {
        const std::size_t end = chosen_.size();
        for (; from < end; ++from) choose_held(traffic_.hops(chosen_[from]));
        return end;
    }

    // Progressive filling of the chosen flows into what the others leave; see fill() in max_min.py.
    void fill() {
        leave_near();
        if (chosen_.size() == 1) return fill_one(chosen_.front());
        lay_out();
        while (!shares_.empty()) {
            const std::int64_t level = shares_.front().first;
            full_.clear();
            while (!shares_.empty() && shares_.front().first == level) {
                const Near& at = near(shares_.front().second);
                const std::int64_t grown = at.weight == 0 ? 0 : share(at);  // since it was noted flows may have got less
                if (grown > level) {
                    shares_.front().first = grown;
                } else {
                    if (grown == level) full_.push_back(shares_.front().second);
                    shares_.front() = shares_.back();
                    shares_.pop_back();
                }
                sink();
            }
            for (const std::int32_t number : full_) fix(near(number), level);
        }
    }

    void leave_near() {
        for (const Near& at : near_) link(at.link).near = NONE;
        near_.clear();
    }

    // A flow on its own gets the smallest share.
    void fill_one(std::int32_t slot) {
        Flow& one = flow(slot);
        one.bottleneck = NONE;
        one.fixed = true;
        for (const Hop& hop : traffic_.hops(slot)) {
            near_.push_back({hop.link, NONE, link(hop.link).rest + one.rate * hop.weight, hop.weight});
            const std::int64_t level = share(near_.back());
            if (one.bottleneck != NONE && level >= one.fresh) continue;
            one.fresh = level;
            one.bottleneck = hop.link;
        }
        for (Near& at : near_) at.rest -= one.fresh * at.weight;
    }

    void lay_out() {
        crossings_.clear();
        for (const std::int32_t slot : chosen_) {
            Flow& one = flow(slot);
            one.fixed = false;
            one.own = NONE;
            for (const Hop& hop : traffic_.hops(slot)) {
                Link& crossed = link(hop.link);
                if (crossed.near == NONE) {
                    crossed.near = static_cast<std::int32_t>(near_.size());
                    near_.push_back({hop.link, NONE, crossed.rest, 0});
                }
                Near& at = near(crossed.near);
                at.rest += one.rate * hop.weight;
                at.weight += hop.weight;
                crossings_.push_back({slot, at.first});
                at.first = static_cast<std::int32_t>(crossings_.size()) - 1;
            }
        }
        shares_.clear();
        for (std::int32_t i = 0; i < static_cast<std::int32_t>(near_.size()); ++i) {
            const Crossing& first = crossings_[static_cast<std::size_t>(near(i).first)];
            if (first.next != NONE) {
                shares_.emplace_back(share(near(i)), i);
                continue;
            }
            std::int32_t& own = flow(first.slot).own;
            if (own == NONE || share(near(i)) < share(near(own))) own = i;
        }
        for (const std::int32_t slot : chosen_) {
            if (const std::int32_t own = flow(slot).own; own != NONE) shares_.emplace_back(share(near(own)), own);
        }
        std::make_heap(shares_.begin(), shares_.end(), std::greater<>{});
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

    // A link is full at this level: so it is for all chosen flows on it that have no rate yet.
    void fix(const Near& full, std::int64_t level) {
        for (std::int32_t i = full.first; i != NONE; i = crossings_[static_cast<std::size_t>(i)].next) {
            const std::int32_t slot = crossings_[static_cast<std::size_t>(i)].slot;
            Flow& one = flow(slot);
            if (one.fixed) continue;
            one.fixed = true;
            one.fresh = level;
            one.bottleneck = full.link;
            for (const Hop& hop : traffic_.hops(slot)) {
                Near& at = near(link(hop.link).near);
                at.rest -= level * hop.weight;
                at.weight -= hop.weight;
            }
        }
    }

    // Check a link of chosen flows, and choose more flows if they have to give way or can have more.
    void check(std::int32_t number, std::int64_t rest) {
        const std::int64_t all = traffic_.weight(number);
        if (rest >= all) return choose_held(number);  // nowhere near full: it holds nobody
        std::int64_t most = 0, next = 0, weight = 0;  // the largest rate, the one below, weights of flows at `most`
        std::int64_t level = 0, kept = 0;  // rates of the flows that it holds, chosen and not
        effort_ += traffic_.on(number).size();
        for (const auto& crossing : traffic_.on(number)) {
            const Flow& one = flow(crossing.slot);
            const std::int64_t rate = one.now();
            if (one.bottleneck == number && one.fixed == one.chosen) (one.fixed ? level : kept) = rate;
            if (rate > most) {
                next = std::exchange(most, rate);
                weight = 0;
            } else if (rate < most) {
                next = std::max(next, rate);
            }
            if (rate == most) weight += crossing.weight;
        }
        if (level != 0 && level < most) choose_above(number, level);
        if (kept != 0 && (kept != most || rest >= weight)) choose_held(number);
        if (rest < 0 && most > 1) choose_above(number, 1);
        if (next != 0 && most - next <= all) check_near_ties(number, rest, all);
    }

    void choose_above(std::int32_t number, std::int64_t rate) {
        choose_if(number, [rate](const Flow& other) { return other.rate > rate; });
    }

    // The link must not be full at a rate below the largest on it, see P(s) above.
    void check_near_ties(std::int32_t number, std::int64_t rest, std::int64_t all) {
        ties_.clear();
        for (const auto& crossing : traffic_.on(number)) ties_.emplace_back(flow(crossing.slot).now(), crossing.weight);
        std::sort(ties_.begin(), ties_.end(), std::greater<>{});
        std::int64_t above = 0, load = 0, violated = 0;  // weights and load of the rates above
        for (std::size_t i = 0; i < ties_.size();) {
            const std::int64_t rate = ties_[i].first;
            const std::int64_t over = load - (rate + 1) * above;
            if (over >= all) break;
            std::int64_t here = 0;
            for (; i < ties_.size() && ties_[i].first == rate; ++i) here += ties_[i].second;
            if (above != 0 && here - over > rest) violated = rate;
            above += here;
            load += here * rate;
        }
        if (violated != 0) choose_above(number, violated - 1);
    }

    void tell_ripples(Tick now) {
        for (const std::int32_t slot : chosen_) {
            Flow& one = flow(slot);
            one.chosen = one.fixed = false;
            one.rate = one.fresh;
            ++link(one.bottleneck).held;
            if (std::exchange(one.home, one.bottleneck) != one.bottleneck) service_.hold(slot, one.home, now);
        }
        for (const std::int32_t slot : chosen_) service_.set_level(flow(slot).home, flow(slot).rate, now);
        for (const Near& at : near_) link(at.link).rest = at.rest;
        leave_near();
        chosen_.clear();
    }

    // ---------------------------------------------------------------------------------------- levels

    // About what filling by levels would take, in the unit of effort_.
    std::size_t effort_of_levels() const {
        switch (way_) {
            case Way::ripples: return std::numeric_limits<std::size_t>::max();
            case Way::levels: case Way::turns: return 0;
            case Way::either: break;
        }
        if (there_ < FEW || weighted_) return std::numeric_limits<std::size_t>::max();
        return there_ + Levels::LINK * std::min(2 * there_, links_.size());
    }

    // Give up looking around: all flows are there, those that joined without a bottleneck.  False if it cannot be.
    bool enter_levels() {
        if (weighted_) return false;
        if (!levels_) levels_ = std::make_unique<Levels>(roads_, traffic_);
        if (!levels_->able()) return false;
        for (const std::int32_t slot : chosen_) flow(slot).chosen = flow(slot).fixed = false;
        leave_near();
        chosen_.clear();
        std::vector<Levels::Move> there;
        for (std::int32_t slot = 0; slot < static_cast<std::int32_t>(flows_.size()); ++slot) {
            if (flow(slot).there) there.push_back({slot, flow(slot).home});
        }
        levels_->begin(there);
        by_levels_ = true;
        stay_ = way_ == Way::turns ? 2 : way_ == Way::levels ? -1 : patience_;
        patience_ = std::min<std::int64_t>(2 * patience_, 4096);
        return true;
    }

    void change_by_levels(Column<Joining> joined, Column<std::int32_t> left) {
        for (const std::int32_t slot : left) {
            flow(slot).there = false;
            levels_->leave(slot);
            traffic_.leave(slot);
        }
        for (const Joining& flow : joined) {
            join(flow.slot, flow.route);
            levels_->join(flow.slot);
        }
        chosen_.clear();
        there_ += joined.size();
        there_ -= left.size();
        levels_->fill();
    }

    void tell_levels(Tick now) {
        for (const auto& [slot, link] : levels_->moves()) service_.hold(slot, flow(slot).home = link, now);
        for (const auto& [rate, link] : levels_->changed()) service_.set_level(link, rate, now);
    }

    // Look around again, where by now few flows may be or changes reach few of them.
    void leave_levels() {
        by_levels_ = false;
        for (std::size_t link = 0; link < links_.size(); ++link) links_[link] = {roads_.capacity[link]};
        for (std::int32_t slot = 0; slot < static_cast<std::int32_t>(flows_.size()); ++slot) {
            Flow& one = flow(slot);
            if (!one.there) continue;
            one.chosen = false;
            one.bottleneck = one.home;
            one.rate = levels_->rate(one.home);
            ++link(one.home).held;
            for (const Hop& hop : traffic_.hops(slot)) link(hop.link).rest -= one.rate * hop.weight;
        }
    }

    static constexpr std::size_t FEW = 64;  // flows

    const Roads roads_;  // only with links that can be bottlenecks
    const Way way_;
    bool weighted_;
    Traffic traffic_;
    Service service_;
    std::unique_ptr<Levels> levels_;  // once it has been needed
    bool by_levels_ = false;
    std::int64_t stay_ = 0, patience_ = 16;  // changes to go before looking around again, and the next time
    std::size_t there_ = 0, effort_ = 0;     // flows; what looking around has looked at
    std::vector<Flow> flows_;  // by slot
    std::vector<Link> links_;
    std::vector<std::int32_t> chosen_;  // slots
    std::vector<Near> near_;
    std::vector<Crossing> crossings_;
    std::vector<Share> shares_;  // a heap, the smallest first
    std::vector<std::int32_t> full_;  // of near_
    std::vector<std::pair<std::int64_t, std::int64_t>> ties_;  // rate and weight
};

}  // namespace triosim
