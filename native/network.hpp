// The interface of network models, as triosim.engine.solver has it: which flow ends when.
#pragma once

#include <span>
#include <vector>

#include "graph.hpp"

namespace triosim {

// A flow is known by its slot, which is used again after it has left.
struct Joining {
    std::int32_t slot, route;
    Work work;
};

struct Ending {
    std::int32_t slot;
    Tick tick;
};

class Network {
public:
    Network() = default;
    Network(const Network&) = delete;
    Network& operator=(const Network&) = delete;
    virtual ~Network() = default;

    // What changes at this tick: appends the flows whose end is new or another than before to `endings`.
    virtual void change(Tick now, Column<Joining> joined, Column<std::int32_t> left, std::vector<Ending>& endings) = 0;

    // Tick at which the model wants to be asked again, or NEVER.
    virtual Tick wake() { return NEVER; }

    // A model may keep ends to itself: the tick of the first (NEVER if there is none, BEYOND if it cannot be counted),
    // and at that tick the flows that end, which are appended.
    virtual Tick next() const { return NEVER; }
    virtual void end(Tick, std::vector<std::int32_t>&) {}

    bool alone_at_capacity = true;
    bool pays_latency = false;
    bool numbers_matter = false;  // whether flows that join must come in the order of the graph
};

// Links are shared and a flow has one rate between two changes: the arithmetic of when it ends.
class Sharing : public Network {
public:
    explicit Sharing(const Roads& roads) : roads_(roads) {}

    void change(Tick now, Column<Joining> joined, Column<std::int32_t> left, std::vector<Ending>& endings) override {
        for (const Joining& flow : joined) {
            const auto slot = static_cast<std::size_t>(flow.slot);
            if (slot >= served_.size()) served_.resize(std::max(slot + 1, 2 * served_.size()));
            served_[slot] = {flow.work, 0, now};
        }
        changed_.clear();
        rates(now, joined, left, changed_);
        for (const Rated& flow : changed_) {
            Served& served = served_[static_cast<std::size_t>(flow.slot)];
            served.work -= Work{served.rate} * (now - served.since);
            served.rate = flow.rate;
            served.since = now;
            endings.push_back({flow.slot, later(now, ticks(served.work, flow.rate))});
        }
    }

protected:
    struct Rated {
        std::int32_t slot;
        std::int64_t rate;
    };

    // The rates that change, of at least 1: appends them.  A flow that has joined stands still until it has one.
    virtual void rates(Tick now, Column<Joining> joined, Column<std::int32_t> left, std::vector<Rated>& changed) = 0;

    const Roads& roads_;

private:
    struct Served {
        Work work;  // left at tick `since`
        std::int64_t rate;
        Tick since;
    };
    std::vector<Served> served_;
    std::vector<Rated> changed_;
};

// Which flows are on which link, in lists from which each flow can be struck out at once.
class Traffic {
public:
    struct Crossing {
        std::int32_t slot, hop, weight;
    };

    explicit Traffic(const Roads& roads) : roads_(roads), lanes_(roads.capacity.size()) {}

    void join(std::int32_t slot, std::int32_t route) {
        const auto at = static_cast<std::size_t>(slot);
        if (at >= hops_.size()) {
            hops_.resize(std::max(at + 1, 2 * hops_.size()));
            place_.resize(hops_.size() * roads_.longest);
        }
        hops_[at] = roads_.hops(route);
        std::int32_t* place = &place_[at * roads_.longest];
        for (std::int32_t hop = 0; const auto& [link, weight] : hops_[at]) {
            Lane& lane = lanes_[static_cast<std::size_t>(link)];
            place[hop] = static_cast<std::int32_t>(lane.flows.size());
            lane.flows.push_back({slot, hop++, weight});
            lane.weight += weight;
        }
    }

    void leave(std::int32_t slot) {
        const auto at = static_cast<std::size_t>(slot);
        const std::int32_t* place = &place_[at * roads_.longest];
        for (const auto& [link, weight] : hops_[at]) {
            Lane& lane = lanes_[static_cast<std::size_t>(link)];
            const Crossing last = lane.flows.back();
            lane.flows[static_cast<std::size_t>(*place)] = last;
            place_[static_cast<std::size_t>(last.slot) * roads_.longest + static_cast<std::size_t>(last.hop)] = *place;
            lane.flows.pop_back();
            lane.weight -= weight;
            ++place;
        }
    }

    Column<Hop> hops(std::int32_t slot) const { return hops_[static_cast<std::size_t>(slot)]; }
    const std::vector<Crossing>& on(std::int32_t link) const { return lanes_[static_cast<std::size_t>(link)].flows; }
    std::int64_t weight(std::int32_t link) const { return lanes_[static_cast<std::size_t>(link)].weight; }

private:
    struct Lane {
        std::vector<Crossing> flows;
        std::int64_t weight = 0;  // of all of them
    };

    const Roads& roads_;
    std::vector<Lane> lanes_;          // by link
    std::vector<Column<Hop>> hops_;    // by slot
    std::vector<std::int32_t> place_;  // of each slot and hop: where in the list of that link
};

}  // namespace triosim
