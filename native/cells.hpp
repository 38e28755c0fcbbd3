// Colour refinement of ranks, ways, links and groups: triosim/network/cells.py tells the idea and has the same in Python.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "graph.hpp"

namespace triosim {

// Everything that can be sent in a job, as triosim.network.cells.Traffic.
struct CellTraffic {
    Column<std::int64_t> party_like, source, target, way_like, link_like;
    Ragged<std::int64_t> needs, members;
    Ragged<std::int32_t> routes;

    std::size_t ways() const { return source.size(); }
};

// Which cell everything is in; -1 for links that no way uses.
struct Cells {
    std::vector<std::int64_t> party, way, link, group;
};

class Refinement {
public:
    explicit Refinement(const CellTraffic& traffic)
        : t_(traffic), party_(mixed(t_.party_like)), kind_(mixed(t_.way_like)), way_(kind_), link_(mixed(t_.link_like)),
          group_(t_.members.size(), 0), used_(link_.size(), false) {
        for (const std::int32_t link : t_.routes.values) used_[static_cast<std::size_t>(link)] = true;
    }

    Cells run() {
        Counts known{count(party_), count(kind_), count_used(), group_.empty() ? 0u : 1u};
        while (true) {
            refine();
            const Counts found{count(party_), count(way_), count_used(), count(group_)};
            if (found == known) break;
            known = found;
        }
        Cells cells{numbered(party_), numbered(way_), std::vector<std::int64_t>(link_.size(), -1), numbered(group_)};
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

    // One round: every colour with those of its neighbours, sums of which do not depend on their order.
    void refine() {
        const std::size_t parties = party_.size();
        Colours way(way_.size()), sent(parties, 0), got(parties, 0), together(parties, 0), carried(link_.size(), 0);
        for (std::size_t i = 0; i < way.size(); ++i) {
            Colour over = 0, before = 0, place = 0;
            for (const std::int32_t link : t_.routes[i]) over += mix(link_[static_cast<std::size_t>(link)] + mix(place++));
            for (const std::int64_t need : t_.needs[i]) before += mix(way_[static_cast<std::size_t>(need)]);
            const auto source = static_cast<std::size_t>(t_.source[i]), target = static_cast<std::size_t>(t_.target[i]);
            way[i] = join(join(join(join(kind_[i], party_[source]), party_[target]), over), before);
            const Colour own = mix(way[i]);
            sent[source] += own;
            got[target] += own;
            for (const std::int32_t link : t_.routes[i]) carried[static_cast<std::size_t>(link)] += own;
        }
        way_ = std::move(way);
        for (std::size_t i = 0; i < group_.size(); ++i) {
            Colour sum = 0;
            for (const std::int64_t party : t_.members[i]) sum += mix(party_[static_cast<std::size_t>(party)]);
            group_[i] = mix(sum);
            const Colour own = mix(group_[i]);
            for (const std::int64_t party : t_.members[i]) together[static_cast<std::size_t>(party)] += own;
        }
        for (std::size_t i = 0; i < parties; ++i) party_[i] = join(join(join(party_[i], sent[i]), got[i]), together[i]);
        for (std::size_t i = 0; i < link_.size(); ++i) link_[i] = join(link_[i], carried[i]);
    }

    const CellTraffic& t_;
    Colours party_, kind_, way_, link_, group_;
    std::vector<bool> used_;
};

}  // namespace triosim
