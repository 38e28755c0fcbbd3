// Colour refinement of ranks, ways, links and groups: triosim/network/rank_classes.py tells the idea and has the same in Python.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "graph.hpp"

namespace triosim {

// Everything that can be sent in a job, as triosim.network.rank_classes.Traffic.
struct CellTraffic {
    Column<std::int64_t> endpoint_like, source, target, begun_by, way_like, link_like, lag;
    Ragged<std::int64_t> needs, members;
    Ragged<std::int32_t> routes;

    std::size_t ways() const { return source.size(); }
};

// Which cell everything is in; -1 for links that no way uses.
struct Cells {
    std::vector<std::int64_t> endpoint, way, link, group;
};

class Refinement {
public:
    explicit Refinement(const CellTraffic& traffic)
        : t_(traffic), endpoint_(mixed(t_.endpoint_like)), kind_(mixed(t_.way_like)), way_(kind_), link_(mixed(t_.link_like)),
          group_(t_.members.size(), 0), used_(link_.size(), false) {
        for (const std::int32_t link : t_.routes.values) used_[static_cast<std::size_t>(link)] = true;
    }

    Cells run() {
        while (true) {
            way_ = kind_;
            until_stable([this] { by_the_past(); });
            const std::size_t endpoints = count(endpoint_), groups = count(group_);
            Colours link = link_;
            part();
            if (count(endpoint_) == endpoints && count(group_) == groups) break;
            link_ = std::move(link);  // how links were parted tells nothing of the past
        }
        Cells cells{numbered(endpoint_), numbered(way_), std::vector<std::int64_t>(link_.size(), -1), numbered(group_)};
        Numbers numbers;
        for (std::size_t link = 0; link < link_.size(); ++link) {
            if (used_[link]) cells.link[link] = numbers.of(link_[link]);
        }
        return cells;
    }

private:
    using Colour = std::uint64_t;
    using Colours = std::vector<Colour>;
    using Counts = std::array<std::size_t, 4>;

    static constexpr Colour ODD = 0x9E3779B97F4A7C15;

    // The finaliser of splitmix64 (Steele et al. 2014).
    static Colour mix(Colour x) {
        x += ODD;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
        return x ^ (x >> 31);
    }
    static Colour join(Colour a, Colour b) { return mix(a * ODD + b); }
    static Colours mixed(Column<std::int64_t> numbers) {
        Colours out(numbers.size());
        std::ranges::transform(numbers, out.begin(), [](std::int64_t n) { return mix(static_cast<Colour>(n)); });
        return out;
    }

    // Numbers for colours, in the order in which they first appear.
    class Numbers {
    public:
        std::int64_t of(Colour colour) {
            if (2 * (keys_.size() + 1) > slots_.size()) grow();
            std::int64_t& slot = find(colour);
            if (slot < 0) {
                slot = static_cast<std::int64_t>(keys_.size());
                keys_.push_back(colour);
            }
            return slot;
        }
        std::size_t size() const { return keys_.size(); }

    private:
        std::int64_t& find(Colour colour) {
            const std::size_t mask = slots_.size() - 1;
            std::size_t at = static_cast<std::size_t>(colour) & mask;
            while (slots_[at] >= 0 && keys_[static_cast<std::size_t>(slots_[at])] != colour) at = (at + 1) & mask;
            return slots_[at];
        }
        void grow() {
            slots_.assign(std::max<std::size_t>(64, 2 * slots_.size()), -1);
            for (std::size_t number = 0; number < keys_.size(); ++number) {
                find(keys_[number]) = static_cast<std::int64_t>(number);
            }
        }

        std::vector<std::int64_t> slots_;
        Colours keys_;
    };

    static std::size_t count(const Colours& colours) {
        Numbers numbers;
        for (const Colour colour : colours) numbers.of(colour);
        return numbers.size();
    }
    std::size_t count_used() const {
        Numbers numbers;
        for (std::size_t link = 0; link < link_.size(); ++link) {
            if (used_[link]) numbers.of(link_[link]);
        }
        return numbers.size();
    }
    static std::vector<std::int64_t> numbered(const Colours& colours) {
        Numbers numbers;
        std::vector<std::int64_t> out(colours.size());
        std::ranges::transform(colours, out.begin(), [&](Colour colour) { return numbers.of(colour); });
        return out;
    }

    template <class Refine>
    void until_stable(Refine refine) {
        Counts known{};
        for (Counts found = counts(); found != known; found = counts()) {
            known = found;
            refine();
        }
    }
    Counts counts() const { return {count(endpoint_), count(way_), count_used(), count(group_)}; }

    // Whether an endpoint begins a way by itself, and which; else the group that does.
    bool alone(std::size_t way) const { return t_.begun_by[way] >= 0; }
    std::size_t beginner(std::size_t way) const {
        const std::int64_t by = t_.begun_by[way];
        return static_cast<std::size_t>(by >= 0 ? by : -1 - by);
    }

    // Sums of neighbours' colours do not depend on their order.

    // One round: every colour with those of what comes before, or shares links.
    void by_the_past() {
        for (std::size_t i = 0; i < group_.size(); ++i) {
            Colour sum = 0;
            for (const std::int64_t endpoint : t_.members[i]) sum += mix(endpoint_[static_cast<std::size_t>(endpoint)]);
            group_[i] = join(group_[i], mix(sum));
        }
        Colours way(way_.size()), sent(endpoint_.size(), 0), got(endpoint_.size(), 0);
        for (std::size_t i = 0; i < way.size(); ++i) {
            Colour before = 0;
            for (auto entry = t_.needs.offsets[i]; entry < t_.needs.offsets[i + 1]; ++entry) {
                const auto at = static_cast<std::size_t>(entry);
                const Colour lag = mix(static_cast<Colour>(t_.lag[at]));
                before += mix(mix(way_[static_cast<std::size_t>(t_.needs.values[at])] + lag));
            }
            const Colour begun = alone(i) ? endpoint_[beginner(i)] : group_[beginner(i)];
            way[i] = join(join(join(kind_[i], begun), over(i)), mix(before));
            sent[static_cast<std::size_t>(t_.source[i])] += mix(way[i]);
            got[static_cast<std::size_t>(t_.target[i])] += mix(way[i]);
        }
        way_ = std::move(way);
        for (std::size_t i = 0; i < endpoint_.size(); ++i) endpoint_[i] = join(join(endpoint_[i], mix(sent[i])), mix(got[i]));
        meet();
        cross();
    }

    // Ways of groups by their ends, and links and ways by each other; groups and endpoints by what they begin.
    void part() {
        for (std::size_t i = 0; i < way_.size(); ++i) {
            if (alone(i)) continue;
            const auto source = static_cast<std::size_t>(t_.source[i]), target = static_cast<std::size_t>(t_.target[i]);
            way_[i] = join(join(way_[i], endpoint_[source]), endpoint_[target]);
        }
        until_stable([this] {
            cross();
            for (std::size_t i = 0; i < way_.size(); ++i) way_[i] = join(way_[i], over(i));
        });
        Colours begun(endpoint_.size(), 0), together(group_.size(), 0);
        for (std::size_t i = 0; i < way_.size(); ++i) (alone(i) ? begun : together)[beginner(i)] += mix(way_[i]);
        for (std::size_t i = 0; i < group_.size(); ++i) group_[i] = join(group_[i], mix(together[i]));
        for (std::size_t i = 0; i < endpoint_.size(); ++i) endpoint_[i] = join(endpoint_[i], mix(begun[i]));
        meet();
    }

    // Endpoints with the groups that they are members of.
    void meet() {
        Colours together(endpoint_.size(), 0);
        for (std::size_t i = 0; i < group_.size(); ++i) {
            for (const std::int64_t endpoint : t_.members[i]) together[static_cast<std::size_t>(endpoint)] += mix(group_[i]);
        }
        for (std::size_t i = 0; i < endpoint_.size(); ++i) endpoint_[i] = join(endpoint_[i], mix(together[i]));
    }

    // Links with the ways that cross them.
    void cross() {
        Colours carried(link_.size(), 0);
        for (std::size_t i = 0; i < way_.size(); ++i) {
            for (const std::int32_t link : t_.routes[i]) carried[static_cast<std::size_t>(link)] += mix(way_[i]);
        }
        for (std::size_t i = 0; i < link_.size(); ++i) link_[i] = join(link_[i], mix(carried[i]));
    }

    // The links that a way crosses, in order.
    Colour over(std::size_t way) const {
        Colour sum = 0, place = 0;
        for (const std::int32_t link : t_.routes[way]) sum += mix(link_[static_cast<std::size_t>(link)] + mix(place++));
        return mix(sum);
    }

    const CellTraffic& t_;
    Colours endpoint_, kind_, way_, link_, group_;
    std::vector<bool> used_;
};

}  // namespace triosim
