// What is played, as views of columns that someone else keeps: triosim.engine.graph in C++.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "queue.hpp"

namespace triosim {

using Work = __int128;  // (1/1024 byte per second) x picoseconds

constexpr Work WORK_PER_BYTE = Work{1024} * 1'000'000'000'000;
constexpr std::int64_t UNLIMITED = -1;
constexpr std::int32_t ALL = -1;

enum class Task : std::int8_t { compute, transfer, collective, join, put, take };
constexpr int KINDS = 6;

template <class T>
using Column = std::span<const T>;

// Rows of different length: row i is values[offsets[i] .. offsets[i + 1]).
template <class T>
struct Ragged {
    Column<T> values;
    Column<std::int64_t> offsets;

    std::size_t size() const { return offsets.empty() ? 0 : offsets.size() - 1; }
    Column<T> operator[](std::size_t row) const {
        return values.subspan(static_cast<std::size_t>(offsets[row]),
                              static_cast<std::size_t>(offsets[row + 1] - offsets[row]));
    }
};

struct Pattern {
    std::int64_t members = 0, places = 0;
    Column<std::int32_t> source, target;
    Column<std::int64_t> bytes;
    Column<std::int32_t> count;
    Ragged<std::int32_t> needs;
    Column<std::int32_t> lag;
    Column<std::int64_t> pause;

    std::size_t size() const { return source.size(); }
};

struct Collective {
    std::size_t pattern = 0;
    Column<std::int32_t> route;
    std::int64_t delay = 0;
};

struct Wires {
    Column<std::int64_t> capacity;
    Ragged<std::int32_t> routes;
    Column<std::int64_t> latency;
    Column<std::int32_t> weights;  // empty: every flow counts once
};

struct Graph {
    Column<std::int8_t> kind;
    Column<std::int32_t> stream;
    Column<std::int64_t> amount;
    Column<std::int32_t> what, member;
    Ragged<std::int32_t> before;
    std::int64_t streams = 0;
    Column<std::int32_t> need;  // empty: all tasks need all
    std::vector<Pattern> patterns;
    std::vector<Collective> collectives;
    Column<std::int32_t> instances;
    Column<std::int64_t> tokens;

    std::size_t size() const { return kind.size(); }
    bool counts(std::size_t task) const {  // whether it waits for some of its predecessors only
        return !need.empty() && need[task] > 0 && static_cast<std::size_t>(need[task]) < before[task].size();
    }
};

// Who waits for whom, as it is found: in pieces, for one list that grows is twice as long when it moves.
class WaitingPairs {
public:
    struct Pair {
        std::int32_t source, target;
    };

    void push_back(const Pair& pair) {
        if (size_++ % PIECE == 0) pieces_.emplace_back().reserve(PIECE);
        pieces_.back().push_back(pair);
    }
    std::size_t size() const { return size_; }

    template <class Call>
    void each(Call call) const {
        for (const auto& piece : pieces_) std::ranges::for_each(piece, call);
    }

    // The last first, none of which is kept.
    template <class Call>
    void take_back(Call call) {
        for (; !pieces_.empty(); pieces_.pop_back()) {
            for (auto pair = pieces_.back().rbegin(); pair != pieces_.back().rend(); ++pair) call(*pair);
        }
        size_ = 0;
    }

private:
    static constexpr std::size_t PIECE = std::size_t{1} << 15;
    std::vector<std::vector<Pair>> pieces_;
    std::size_t size_ = 0;
};

// Sorted by source in linear time: who waits for whom.
class Successors {
public:
    Successors() = default;
    Successors(std::size_t rows, WaitingPairs&& pairs) : first_(rows + 1, 0), targets_(pairs.size()) {
        pairs.each([this](const WaitingPairs::Pair& pair) { ++first_[static_cast<std::size_t>(pair.source)]; });
        std::int64_t end = 0;
        for (std::int64_t& first : first_) first = end += first;
        pairs.take_back([this](const WaitingPairs::Pair& pair) {
            targets_[static_cast<std::size_t>(--first_[static_cast<std::size_t>(pair.source)])] = pair.target;
        });
    }

    Column<std::int32_t> operator[](std::int32_t row) const {
        if (first_.empty()) return {};
        const auto begin = first_[static_cast<std::size_t>(row)], end = first_[static_cast<std::size_t>(row) + 1];
        return {targets_.data() + begin, static_cast<std::size_t>(end - begin)};
    }

private:
    std::vector<std::int64_t> first_;
    std::vector<std::int32_t> targets_;
};

// A link that a flow crosses, and how many times it counts there.
struct Hop {
    std::int32_t link, weight;
};

// Routes with only the links that limit, and what a flow that shares none of them is served at.
class Roads {
public:
    explicit Roads(const Wires& wires) : latency(wires.latency), capacity(wires.capacity) {
        first_.reserve(wires.routes.size() + 1);
        rate_.reserve(wires.routes.size());
        hops_.reserve(wires.routes.values.size());
        first_.push_back(0);
        for (std::size_t route = 0; route < wires.routes.size(); ++route) {
            std::int64_t rate = 0;
            for (auto i = wires.routes.offsets[route]; i < wires.routes.offsets[route + 1]; ++i) {
                const auto at = static_cast<std::size_t>(i);
                const std::int32_t link = wires.routes.values[at];
                const std::int64_t limit = capacity[static_cast<std::size_t>(link)];
                if (limit == UNLIMITED) continue;
                hops_.push_back({link, wires.weights.empty() ? 1 : wires.weights[at]});
                const std::int64_t share = std::max<std::int64_t>(limit / hops_.back().weight, 1);
                rate = rate == 0 ? share : std::min(rate, share);
            }
            first_.push_back(hops_.size());
            rate_.push_back(rate);
            longest = std::max(longest, hops(static_cast<std::int32_t>(route)).size());
        }
    }

    Column<Hop> hops(std::int32_t route) const {
        const std::size_t begin = first_[static_cast<std::size_t>(route)];
        return {hops_.data() + begin, first_[static_cast<std::size_t>(route) + 1] - begin};
    }
    std::int32_t routes() const { return static_cast<std::int32_t>(rate_.size()); }

    // The same without links that hold back nobody whom another link does not hold back as much: all routes that cross
    // such a link cross that other one too, which has no more capacity and where each counts at least as often.
    Roads that_hold() const {
        const std::vector<std::int32_t> instead = held_instead();
        Roads fewer(latency, capacity);
        fewer.rate_ = rate_;
        fewer.first_.reserve(first_.size());
        fewer.first_.push_back(0);
        for (std::int32_t route = 0; route < routes(); ++route) {
            for (const Hop& hop : hops(route)) {
                if (instead[static_cast<std::size_t>(hop.link)] < 0) fewer.hops_.push_back(hop);
            }
            fewer.first_.push_back(fewer.hops_.size());
            fewer.longest = std::max(fewer.longest, fewer.hops(route).size());
        }
        return fewer;
    }
    bool weighted() const {
        return std::ranges::any_of(hops_, [](const Hop& hop) { return hop.weight != 1; });
    }
    std::int64_t rate(std::int32_t route) const { return rate_[static_cast<std::size_t>(route)]; }

    Column<std::int64_t> latency, capacity;
    std::size_t longest = 0;

private:
    Roads(Column<std::int64_t> of_routes, Column<std::int64_t> of_links) : latency(of_routes), capacity(of_links) {}

    // For each link one that holds all that cross it as much, -1 if none does.  Of links that are alike one is kept.
    std::vector<std::int32_t> held_instead() const {
        struct Others {  // links that all routes so far have in common with a link, in `common`
            std::size_t first = 0, count = 0;
            bool seen = false;
        };
        std::vector<Others> others(capacity.size());
        std::vector<std::int32_t> common;
        for (std::int32_t route = 0; route < routes(); ++route) {
            const Column<Hop> crossed = hops(route);
            for (const Hop& here : crossed) {
                const auto holds = [&](const Hop& other) {
                    return other.link != here.link && other.weight >= here.weight &&
                           capacity[static_cast<std::size_t>(other.link)] <= capacity[static_cast<std::size_t>(here.link)];
                };
                Others& found = others[static_cast<std::size_t>(here.link)];
                if (!std::exchange(found.seen, true)) {
                    found.first = common.size();
                    for (const Hop& other : crossed) {
                        if (holds(other)) common.push_back(other.link);
                    }
                    found.count = common.size() - found.first;
                    continue;
                }
                const auto begin = common.begin() + static_cast<std::ptrdiff_t>(found.first);
                const auto stay = std::remove_if(begin, begin + static_cast<std::ptrdiff_t>(found.count), [&](auto link) {
                    return std::ranges::none_of(crossed, [&](const Hop& other) { return other.link == link && holds(other); });
                });
                found.count = static_cast<std::size_t>(stay - begin);
            }
        }
        std::vector<std::int32_t> instead(capacity.size(), -1);
        for (std::size_t link = 0; link < others.size(); ++link) {
            for (std::size_t i = 0; i < others[link].count; ++i) {
                const std::int32_t other = common[others[link].first + i];
                if (instead[static_cast<std::size_t>(other)] < 0) instead[link] = other;
            }
        }
        return instead;
    }

    std::vector<std::size_t> first_;
    std::vector<std::int64_t> rate_;
    std::vector<Hop> hops_;
};

// Ticks until work is done at a rate, rounded up; none where no link limits (rate 0).
inline Tick ticks(Work work, std::int64_t rate) {
    if (rate == 0 || work <= 0) return 0;
    // Mostly it is certain in floating point: the quotient is wrong by less than 2^-50 of itself.
    const auto high_part = static_cast<std::int64_t>(work >> 64);
    const double about = (static_cast<double>(high_part) * 0x1p64 + static_cast<double>(static_cast<std::uint64_t>(work))) /
                         static_cast<double>(rate);
    if (about < 0x1p49) {
        const auto low = static_cast<Tick>(about * (1 - 0x1p-50)), high = static_cast<Tick>(about * (1 + 0x1p-50));
        if (low == high) return low + 1;
    }
    const auto exact = (static_cast<unsigned __int128>(work) + static_cast<unsigned __int128>(rate) - 1) /
                       static_cast<unsigned __int128>(rate);
    return exact > static_cast<unsigned __int128>(BEYOND) ? BEYOND : static_cast<Tick>(exact);
}

// A sum of ticks that stays at BEYOND.
inline Tick later(Tick a, Tick b) {
    Tick sum;
    return __builtin_add_overflow(a, b, &sum) ? BEYOND : sum;
}

}  // namespace triosim
