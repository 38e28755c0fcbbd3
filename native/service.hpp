// What flows have been served, without visiting them when their rates change.
//
// All flows that have their bottleneck on one link have one rate, the level of the link.  So the link counts what it
// has served each of them, V, the integral of its level, and a flow that comes with work w is done when V has grown by
// w: its key is V + w, whatever the level does.  (Virtual time, as in Zhang, "VirtualClock", SIGCOMM 1990, and Demers,
// Keshav and Shenker, SIGCOMM 1989, here one clock a link.)  Whole numbers of 128 bits keep this exact: a flow ends at
// the first tick at which V is not less than its key.  One heap of flows a link, and one heap of links by the next end.
#pragma once

#include <utility>

#include "graph.hpp"

namespace triosim {

class Service {
public:
    explicit Service(std::size_t links) : clock_of_(links, NONE) {}

    // A flow comes; it must be held by a link before time goes on.
    void arrive(std::int32_t slot, Work work) {
        const auto at = static_cast<std::size_t>(slot);
        if (at >= flows_.size()) flows_.resize(std::max(at + 1, 2 * flows_.size()));
        flows_[at] = {work, NONE, NONE};
    }

    // From now on the flow has its bottleneck on this link.
    void hold(std::int32_t slot, std::int32_t link, Tick now) {
        Held& held = flow(slot);
        Work left = held.key;
        if (held.clock != NONE) {
            Clock& from = clock(held.clock);
            from.settle(now);
            left -= from.served;
            take(from, held.place);
            touch(held.clock);
        }
        held.clock = open(link, now);
        Clock& to = clock(held.clock);
        to.settle(now);
        held.key = to.served + left;
        to.flows.push_back(slot);
        rise(to, to.flows.size() - 1);
        touch(held.clock);
    }

    // From now on this is the level of a link that holds flows.
    void set_level(std::int32_t link, std::int64_t level, Tick now) {
        const std::int32_t number = clock_of_[static_cast<std::size_t>(link)];
        Clock& here = clock(number);
        if (here.level == level) return;
        here.settle(now);
        here.level = level;
        touch(number);
    }

    // To be called when all is said that changes at one tick.
    void foresee() {
        const bool most = touched_.size() * std::bit_width(queue_.size()) > queue_.size() + FEW;
        for (const std::int32_t number : touched_) {
            Clock& here = clock(number);
            here.touched = false;
            if (here.flows.empty()) {
                close(number);
            } else {
                const Tick end = next_end(here);
                if (here.place == NONE) {
                    here.place = static_cast<std::int32_t>(queue_.size());
                    queue_.push_back({end, number});
                    if (!most) lift(queue_.size() - 1);
                } else {
                    const auto at = static_cast<std::size_t>(here.place);
                    const Tick before = std::exchange(queue_[at].end, end);
                    if (!most) end < before ? lift(at) : sink(at);
                }
            }
        }
        touched_.clear();
        if (most) {
            for (std::size_t at = queue_.size() / 2; at-- > 0;) sink(at);
        }
    }

    // When the next flow ends: NEVER if none is there, BEYOND if it cannot be counted.
    Tick next() const { return queue_.empty() ? NEVER : queue_.front().end; }

    // The flows that end now, the tick of next(): appended, and forgotten.
    void end(Tick now, std::vector<std::int32_t>& ended) {
        while (next() == now) {
            const std::int32_t number = queue_.front().clock;
            Clock& here = clock(number);
            here.settle(now);
            while (!here.flows.empty() && flow(here.flows.front()).key <= here.served) {
                ended.push_back(here.flows.front());
                take(here, 0);
            }
            if (here.flows.empty()) {
                close(number);
            } else {
                queue_.front().end = next_end(here);
                sink(0);
            }
        }
    }

private:
    static constexpr std::int32_t NONE = -1;
    static constexpr std::size_t FEW = 64;  // clocks

    struct Held {
        Work key;            // of a flow that no link holds yet, its work
        std::int32_t clock;  // that it runs by
        std::int32_t place;  // in the heap of the clock
    };
    struct Clock {  // of a link that holds flows
        Work served = 0;  // of each flow, at tick `since`
        Tick since = 0;
        std::int64_t level = 0;
        std::int32_t link = NONE, place = NONE;  // place: in queue_
        bool touched = false;
        std::vector<std::int32_t> flows;  // a heap, the least key first

        void settle(Tick now) {
            served += Work{level} * (now - since);
            since = now;
        }
    };
    struct Next {
        Tick end;
        std::int32_t clock;
    };

    Held& flow(std::int32_t slot) { return flows_[static_cast<std::size_t>(slot)]; }
    Clock& clock(std::int32_t number) { return clocks_[static_cast<std::size_t>(number)]; }

    Tick next_end(const Clock& here) {
        return later(here.since, ticks(flow(here.flows.front()).key - here.served, here.level));
    }

    void touch(std::int32_t number) {
        if (!std::exchange(clock(number).touched, true)) touched_.push_back(number);
    }

    // The clock of a link, a new one if it has none.
    std::int32_t open(std::int32_t link, Tick now) {
        std::int32_t& number = clock_of_[static_cast<std::size_t>(link)];
        if (number != NONE) return number;
        if (spare_.empty()) {
            number = static_cast<std::int32_t>(clocks_.size());
            clocks_.emplace_back();
        } else {
            number = spare_.back();
            spare_.pop_back();
        }
        Clock& fresh = clock(number);
        fresh.served = 0;
        fresh.since = now;
        fresh.level = 0;
        fresh.link = link;
        return number;
    }

    void close(std::int32_t number) {
        Clock& here = clock(number);
        clock_of_[static_cast<std::size_t>(here.link)] = NONE;
        spare_.push_back(number);
        if (here.place == NONE) return;
        const auto at = static_cast<std::size_t>(std::exchange(here.place, NONE));
        const Next last = queue_.back();
        queue_.pop_back();
        if (at == queue_.size()) return;
        put(at, last);
        lift(at);
        sink(at);
    }

    // ------------------------------------------------------------- the heap of the flows of one clock

    void seat(Clock& here, std::size_t at, std::int32_t slot) {
        here.flows[at] = slot;
        flow(slot).place = static_cast<std::int32_t>(at);
    }

    void rise(Clock& here, std::size_t at) {
        const std::int32_t slot = here.flows[at];
        const Work key = flow(slot).key;
        for (; at > 0; at = (at - 1) / 2) {
            const std::int32_t above = here.flows[(at - 1) / 2];
            if (flow(above).key <= key) break;
            seat(here, at, above);
        }
        seat(here, at, slot);
    }

    void fall(Clock& here, std::size_t at) {
        const std::int32_t slot = here.flows[at];
        const Work key = flow(slot).key;
        for (std::size_t child = 2 * at + 1; child < here.flows.size(); child = 2 * at + 1) {
            if (child + 1 < here.flows.size() && flow(here.flows[child + 1]).key < flow(here.flows[child]).key) ++child;
            if (key <= flow(here.flows[child]).key) break;
            seat(here, at, here.flows[child]);
            at = child;
        }
        seat(here, at, slot);
    }

    void take(Clock& here, std::int32_t place) {
        const auto at = static_cast<std::size_t>(place);
        const std::int32_t last = here.flows.back();
        here.flows.pop_back();
        if (at == here.flows.size()) return;
        here.flows[at] = last;
        rise(here, at);
        fall(here, static_cast<std::size_t>(flow(last).place));
    }

    // ---------------------------------------------------------------- the heap of clocks by their next end

    void put(std::size_t at, const Next& next) {
        queue_[at] = next;
        clock(next.clock).place = static_cast<std::int32_t>(at);
    }

    void lift(std::size_t at) {
        const Next next = queue_[at];
        for (; at > 0 && next.end < queue_[(at - 1) / 2].end; at = (at - 1) / 2) put(at, queue_[(at - 1) / 2]);
        put(at, next);
    }

    void sink(std::size_t at) {
        const Next next = queue_[at];
        for (std::size_t child = 2 * at + 1; child < queue_.size(); child = 2 * at + 1) {
            if (child + 1 < queue_.size() && queue_[child + 1].end < queue_[child].end) ++child;
            if (next.end <= queue_[child].end) break;
            put(at, queue_[child]);
            at = child;
        }
        put(at, next);
    }

    std::vector<Held> flows_;             // by slot
    std::vector<Clock> clocks_;           // those of spare_ are unused
    std::vector<std::int32_t> clock_of_;  // of each link
    std::vector<std::int32_t> spare_, touched_;
    std::vector<Next> queue_;  // a heap, the earliest end first
};

}  // namespace triosim
