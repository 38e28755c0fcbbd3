// Equal split, as triosim.engine.solvers.equal_split: an equal part of each link, what cannot be used of it is lost.
#pragma once

#include <utility>

#include "network.hpp"

namespace triosim {

class EqualSplit : public Sharing {
public:
    explicit EqualSplit(const Roads& roads) : Sharing(roads), traffic_(roads), seen_(roads.capacity.size(), 0) {}

protected:
    void rates(Tick, Column<Joining> joined, Column<std::int32_t> left, std::vector<Rated>& changed) override {
        touched_.clear();
        for (const std::int32_t slot : left) {
            touch(traffic_.hops(slot));
            traffic_.leave(slot);
        }
        for (const Joining& flow : joined) {
            traffic_.join(flow.slot, flow.route);
            touch(traffic_.hops(flow.slot));
            const auto slot = static_cast<std::size_t>(flow.slot);
            if (slot >= rate_.size()) rate_.resize(std::max(slot + 1, 2 * rate_.size()));
            rate_[slot] = 0;
        }
        for (const std::int32_t link : touched_) {
            seen_[static_cast<std::size_t>(link)] = 0;
            for (const auto& crossing : traffic_.on(link)) {
                const std::int64_t rate = share(crossing.slot);
                std::int64_t& known = rate_[static_cast<std::size_t>(crossing.slot)];
                if (rate != known) changed.push_back({crossing.slot, known = rate});
            }
        }
    }

private:
    void touch(Column<Hop> hops) {
        for (const Hop& hop : hops) {
            if (std::exchange(seen_[static_cast<std::size_t>(hop.link)], 1) == 0) touched_.push_back(hop.link);
        }
    }

    std::int64_t share(std::int32_t slot) const {
        std::int64_t rate = std::numeric_limits<std::int64_t>::max();
        for (const Hop& hop : traffic_.hops(slot)) {
            rate = std::min(rate, roads_.capacity[static_cast<std::size_t>(hop.link)] / traffic_.weight(hop.link));
        }
        return std::max<std::int64_t>(rate, 1);
    }

    Traffic traffic_;
    std::vector<std::int64_t> rate_;     // of each slot
    std::vector<std::int32_t> touched_;  // links
    std::vector<std::uint8_t> seen_;     // of each link: whether it is in touched_
};

}  // namespace triosim
