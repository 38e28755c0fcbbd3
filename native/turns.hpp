// Turns: pieces of programs that are played one after another on a few workers, nothing shared between them but what
// they send; the rules are those of triosim/engine/contention_free.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "queue.hpp"

namespace triosim {

struct Pieces {
    std::span<const std::int64_t> first;  // row at which each piece begins, and the end
    std::span<const std::int8_t> kind, stream, shown;
    std::span<const std::int64_t> ticks, gap;
    std::span<const std::int64_t> offsets;  // of before
    std::span<const std::int32_t> before;   // counted from the first row of the piece
};

struct Turns {
    std::span<const std::int64_t> first;        // turn at which each worker begins, and the end
    std::span<const std::int32_t> cast;         // of each turn
    std::span<const std::int32_t> number;       // of each turn: what is added to its ports
    std::span<const std::int32_t> piece;        // of each cast
    std::span<const std::int64_t> port_first;   // of each cast, and the end
    std::span<const std::int64_t> ports;        // message of each row that sends or receives, number 0
    std::span<const std::int64_t> longer;       // ticks that the sending of each message takes more
};

struct Spans {
    std::vector<std::int64_t> start, end;
    void add(std::int64_t from, std::int64_t to) {
        if (to <= from) return;
        if (!end.empty() && from <= end.back()) {
            end.back() = std::max(end.back(), to);
            return;
        }
        start.push_back(from);
        end.push_back(to);
    }
};

enum : std::int8_t { PLAIN = 0, SENDS = 1, RECEIVES = 2 };
constexpr std::size_t SHOWN = 4;  // kinds of spans: compute, collectives, sends, host
constexpr std::int64_t NOT_SENT = -1;

// Plays all turns; false where some can never begin.
class Player {
public:
    Player(const Pieces& pieces, const Turns& turns, std::size_t streams, std::size_t messages)
        : pieces_(pieces), turns_(turns), streams_(streams), workers(turns.first.size() - 1),
          free(workers * streams, 0), sent(messages, NOT_SENT), arrived(messages, NOT_SENT), spans(workers * SHOWN),
          at_(workers) {
        for (std::size_t w = 0; w < workers; ++w) at_[w] = turns.first[w];
    }

    bool play() {
        bool moved = true;
        std::size_t left = turns_.cast.size();
        while (left && moved) {
            moved = false;
            for (std::size_t w = 0; w < workers; ++w)
                while (at_[w] < turns_.first[w + 1] && possible(at_[w])) {
                    turn(w, at_[w]++);
                    --left;
                    moved = true;
                }
        }
        return left == 0;
    }

private:
    const Pieces& pieces_;
    const Turns& turns_;
    std::size_t streams_;

public:
    std::size_t workers;
    std::vector<std::int64_t> free, sent, arrived;
    std::vector<Spans> spans;

private:
    std::vector<std::int64_t> at_, finish_;

    std::size_t message(std::int64_t turn, std::int64_t& port) const {
        return static_cast<std::size_t>(turns_.ports[port++] + turns_.number[turn]);
    }

    bool possible(std::int64_t turn) const {
        const auto cast = turns_.cast[turn];
        std::int64_t port = turns_.port_first[cast];
        if (port == turns_.port_first[cast + 1]) return true;
        const auto piece = turns_.piece[cast];
        for (auto row = pieces_.first[piece]; row < pieces_.first[piece + 1]; ++row) {
            if (pieces_.kind[row] == PLAIN) continue;
            const auto which = message(turn, port);
            if (pieces_.kind[row] == RECEIVES && arrived[which] == NOT_SENT) return false;
        }
        return true;
    }

    void turn(std::size_t worker, std::int64_t turn) {
        const auto cast = turns_.cast[turn];
        const auto piece = turns_.piece[cast];
        const auto first = pieces_.first[piece], end = pieces_.first[piece + 1];
        std::int64_t port = turns_.port_first[cast];
        std::int64_t* const free_of = free.data() + worker * streams_;
        Spans* const shown = spans.data() + worker * SHOWN;
        finish_.resize(static_cast<std::size_t>(end - first));
        for (auto row = first; row < end; ++row) {
            std::int64_t ready = 0;
            for (auto k = pieces_.offsets[row]; k < pieces_.offsets[row + 1]; ++k)
                ready = std::max(ready, finish_[pieces_.before[k]]);
            const auto stream = pieces_.stream[row];
            if (stream >= 0) ready = std::max(ready, free_of[stream]);
            std::int64_t done = ready + pieces_.ticks[row];
            if (pieces_.kind[row] == RECEIVES) done = ready = std::max(ready, arrived[message(turn, port)]);
            if (pieces_.kind[row] == SENDS) {
                const auto which = message(turn, port);
                done += turns_.longer[which];
                sent[which] = ready;
                arrived[which] = done;
            }
            if (pieces_.shown[row] >= 0) shown[pieces_.shown[row]].add(ready, done - pieces_.gap[row]);
            if (stream >= 0) free_of[stream] = done;
            finish_[static_cast<std::size_t>(row - first)] = done;
        }
    }
};

// When the rows of the one piece begin and end that follows another like it.
inline void steady(const Pieces& piece, std::size_t streams, std::vector<std::int64_t>& start,
                   std::vector<std::int64_t>& finish) {
    const std::size_t rows = piece.kind.size();
    std::vector<std::int64_t> free(streams, 0);
    start.assign(rows, 0);
    finish.assign(rows, 0);
    for (int time = 0; time < 2; ++time)
        for (std::size_t row = 0; row < rows; ++row) {
            std::int64_t ready = 0;
            for (auto k = piece.offsets[row]; k < piece.offsets[row + 1]; ++k)
                ready = std::max(ready, finish[static_cast<std::size_t>(piece.before[k])]);
            const auto stream = piece.stream[row];
            if (stream >= 0) ready = std::max(ready, free[static_cast<std::size_t>(stream)]);
            start[row] = ready;
            finish[row] = ready + piece.ticks[row];
            if (stream >= 0) free[static_cast<std::size_t>(stream)] = finish[row];
        }
}

// No turn ends later than this, in ticks.
inline double lasts(const Pieces& p, const Turns& t) {
    std::vector<double> each(p.first.size() - 1);
    double most = 0;
    for (std::size_t piece = 0; piece < each.size(); ++piece) {
        const auto first = static_cast<std::size_t>(p.first[piece]), end = static_cast<std::size_t>(p.first[piece + 1]);
        each[piece] = all_together(p.ticks.subspan(first, end - first));
        most = std::max(most, 2 * each[piece]);  // one after another like it
    }
    double sum = all_together(t.longer);
    for (const std::int32_t cast : t.cast) sum += each[static_cast<std::size_t>(t.piece[static_cast<std::size_t>(cast)])];
    return std::max(sum, most) + all_together(p.gap);
}

// What is wrong with columns that would make the player read where nothing is, nullptr where nothing is.
inline const char* why_wrong(const Pieces& p, const Turns& t, std::size_t streams, std::size_t messages) {
    const auto rising = [](std::span<const std::int64_t> ends, std::size_t last) {
        return !ends.empty() && ends.front() == 0 && std::ranges::is_sorted(ends) &&
               static_cast<std::size_t>(ends.back()) == last;
    };
    const std::size_t rows = p.kind.size();
    if (!rising(p.first, rows) || p.stream.size() != rows || p.shown.size() != rows || p.ticks.size() != rows ||
        p.gap.size() != rows || p.offsets.size() != rows + 1 || !rising(p.offsets, p.before.size()))
        return "columns of pieces must be of one length";
    if (!rising(t.first, t.cast.size()) || t.number.size() != t.cast.size() ||
        !rising(t.port_first, t.ports.size()) || t.port_first.size() != t.piece.size() + 1)
        return "columns of turns must be of one length";
    if (t.longer.size() != messages) return "every message needs its ticks";
    for (std::size_t piece = 0; piece + 1 < p.first.size(); ++piece)
        for (auto row = p.first[piece]; row < p.first[piece + 1]; ++row) {
            if (p.stream[row] < -1 || p.stream[row] >= static_cast<std::int64_t>(streams) || p.shown[row] < -1 ||
                p.shown[row] >= static_cast<std::int64_t>(SHOWN) || p.kind[row] < PLAIN || p.kind[row] > RECEIVES)
                return "a row of a piece has no such kind, stream or span";
            for (auto k = p.offsets[row]; k < p.offsets[row + 1]; ++k)
                if (p.before[k] < 0 || p.before[k] >= row - p.first[piece]) return "a row must wait for earlier rows";
        }
    // Of each cast with ports; numbers are of 32 bits, so that sums with ports this far from the ends do not overflow.
    constexpr std::int64_t FAR = std::int64_t{1} << 62;
    std::vector<std::int64_t> largest(t.piece.size(), 0), smallest(t.piece.size(), 0);
    for (std::size_t cast = 0; cast < t.piece.size(); ++cast) {
        if (t.piece[cast] < 0 || static_cast<std::size_t>(t.piece[cast]) + 1 >= p.first.size()) return "no such piece";
        std::int64_t ports = 0;
        for (auto row = p.first[t.piece[cast]]; row < p.first[t.piece[cast] + 1]; ++row) ports += p.kind[row] != PLAIN;
        if (ports != t.port_first[cast + 1] - t.port_first[cast]) return "a cast needs a port for each message";
        for (auto k = t.port_first[cast]; k < t.port_first[cast + 1]; ++k) {
            if (t.ports[k] < -FAR || t.ports[k] > FAR) return "no such message";
            const bool begins = k == t.port_first[cast];
            largest[cast] = begins ? t.ports[k] : std::max(largest[cast], t.ports[k]);
            smallest[cast] = begins ? t.ports[k] : std::min(smallest[cast], t.ports[k]);
        }
    }
    for (std::size_t turn = 0; turn < t.cast.size(); ++turn) {
        const auto cast = t.cast[turn];
        if (cast < 0 || static_cast<std::size_t>(cast) >= t.piece.size()) return "no such cast";
        const bool talks = t.port_first[cast] < t.port_first[cast + 1];
        if (talks && (smallest[cast] + t.number[turn] < 0 ||
                      static_cast<std::uint64_t>(largest[cast] + t.number[turn]) >= messages))
            return "no such message";
    }
    return lasts(p, t) > MOST_TICKS ? TOO_LONG : nullptr;
}

}  // namespace triosim
