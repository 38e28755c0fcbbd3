// Columns of turns of pieces whose transfers meet; see triosim/engine/contended.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "queue.hpp"

namespace triosim {

struct MeetingPieces {
    std::span<const std::int64_t> first;  // row at which each piece begins, and the end
    std::span<const std::int8_t> kind, stream;
    std::span<const std::int64_t> ticks;
    std::span<const double> stretch;
    std::span<const std::int32_t> label;
    std::span<const std::int64_t> offsets;  // of before
    std::span<const std::int32_t> before;   // counted from the first row of the piece
    std::span<const std::int64_t> held;     // ticks after the release of its turn before which work does not end, or else
                                         // nothing begins
    std::span<const double> beside;  // of each row: how many times longer what moves takes beside what it moves itself
    std::span<const std::int64_t> gap, exposed;  // ticks of each row in which nothing is done; in which only what is
                                                 // moved within it is under way
    std::span<const double> held_exposed;        // of each piece: part of the wait for its host in which it is
};

struct MeetingTurns {
    std::span<const std::int64_t> first;       // turn at which each worker begins, and the end
    std::span<const std::int32_t> cast;        // of each turn
    std::span<const std::int32_t> number;      // of each turn: what is added to its ports
    std::span<const std::int64_t> release;     // of each turn: tick before which its work does not begin
    std::span<const std::int32_t> piece;       // of each cast
    std::span<const std::int64_t> port_first;  // of each cast, and the end
    std::span<const std::int64_t> message;     // of each port, number 0
    std::span<const std::int32_t> way;         // of each port: class of the transfer
    std::span<const std::int32_t> to;          // of each port: worker at the other end
    std::span<const std::int64_t> lag;         // of each label: ticks from the begin in which what moves uses nothing
};

struct MeetingWays {
    std::span<const std::int64_t> first;     // where the uses of each class begin, and the end
    std::span<const std::int32_t> resource;  // of each use
    std::span<const double> part;            // of each use: how much of the resource
    std::span<const std::int32_t> own;       // class of what each worker moves
    std::span<const std::int64_t> beside_first;  // where the classes that go beside each class begin, and the end
    std::span<const std::int32_t> beside;
    std::size_t resources;
};

// Kinds of rows.
struct MeetingKind {
    enum : std::int8_t { WORK = 0, MOVE = 1, SENDS = 2, RECEIVES = 3 };
};
constexpr std::int64_t MEETING_FAR = std::int64_t{1} << 61;  // ticks: what comes after this is not played

// What is wrong with columns that would make the player read where nothing is, nullptr where nothing is.
inline const char* why_wrong(const MeetingPieces& p, const MeetingTurns& t, const MeetingWays& w, std::size_t streams,
                             std::size_t messages, std::size_t labels, std::span<const std::int64_t> host) {
    const auto rising = [](std::span<const std::int64_t> ends, std::size_t last) {
        return !ends.empty() && ends.front() == 0 && std::ranges::is_sorted(ends) &&
               static_cast<std::size_t>(ends.back()) == last;
    };
    const std::size_t rows = p.kind.size(), workers = t.first.empty() ? 0 : t.first.size() - 1;
    if (!rising(p.first, rows) || p.stream.size() != rows || p.ticks.size() != rows || p.stretch.size() != rows ||
        p.label.size() != rows || p.held.size() != rows || p.beside.size() != rows ||
        p.gap.size() != rows || p.exposed.size() != rows ||
        p.held_exposed.size() + 1 != p.first.size() || p.offsets.size() != rows + 1 || !rising(p.offsets, p.before.size()))
        return "columns of pieces must be of one length";
    if (streams == 0 || streams > 64) return "there are 1 to 64 streams";
    if (!rising(t.first, t.cast.size()) || t.number.size() != t.cast.size() || t.release.size() != t.cast.size() ||
        !rising(t.port_first, t.message.size()) || t.way.size() != t.message.size() ||
        t.to.size() != t.message.size() || t.port_first.size() != t.piece.size() + 1)
        return "columns of turns must be of one length";
    if (!rising(w.first, w.resource.size()) || w.part.size() != w.resource.size() || w.own.size() != workers ||
        host.size() != workers)
        return "columns of ways must be of one length";
    const auto ways = static_cast<std::int64_t>(w.first.size()) - 1;
    for (const auto resource : w.resource)
        if (resource < 0 || static_cast<std::size_t>(resource) >= w.resources) return "no such resource";
    if (w.beside_first.size() != w.first.size() || !rising(w.beside_first, w.beside.size()) ||
        t.lag.size() != labels)
        return "columns of ways must be of one length";
    for (const auto classes : {w.own, w.beside})
        for (const auto way : classes)
            if (way < 0 || way >= ways) return "no such class of transfers";
    const auto far = [](std::int64_t tick) { return tick < -MEETING_FAR || tick > MEETING_FAR; };
    if (std::ranges::any_of(t.release, far) || std::ranges::any_of(p.held, far) || std::ranges::any_of(host, far))
        return TOO_LONG;
    for (const auto part : p.held_exposed)
        if (!(part >= 0 && part <= 1)) return "a part of a wait is from 0 to 1";
    for (std::size_t piece = 0; piece + 1 < p.first.size(); ++piece)
        for (auto row = p.first[piece]; row < p.first[piece + 1]; ++row) {
            const bool receives = p.kind[row] == MeetingKind::RECEIVES;
            if (p.kind[row] < MeetingKind::WORK || p.kind[row] > MeetingKind::RECEIVES || p.ticks[row] < 0 || p.held[row] < 0 ||
                (receives ? p.stream[row] != -1
                          : p.stream[row] < 0 || static_cast<std::size_t>(p.stream[row]) >= streams) ||
                !(p.stretch[row] >= 1) || !(p.beside[row] >= 1) || p.gap[row] < 0 || p.exposed[row] < 0 ||
                p.gap[row] > p.ticks[row] ||
                p.exposed[row] > p.ticks[row] || p.label[row] < -1 ||
                (p.label[row] >= 0 && static_cast<std::size_t>(p.label[row]) >= labels))
                return "a row of a piece has no such kind, stream, time or label";
            if (p.kind[row] == MeetingKind::WORK && p.stream[row] != 0) return "what works is on stream 0";
            for (auto k = p.offsets[row]; k < p.offsets[row + 1]; ++k)
                if (p.before[k] < 0 || p.before[k] >= row - p.first[piece]) return "a row must wait for earlier rows";
        }
    for (std::size_t cast = 0; cast < t.piece.size(); ++cast) {
        if (t.piece[cast] < 0 || static_cast<std::size_t>(t.piece[cast]) + 1 >= p.first.size()) return "no such piece";
        std::int64_t ports = 0;
        for (auto row = p.first[t.piece[cast]]; row < p.first[t.piece[cast] + 1]; ++row)
            ports += p.kind[row] >= MeetingKind::SENDS;
        if (ports != t.port_first[cast + 1] - t.port_first[cast]) return "a cast needs a port for each message";
        for (auto k = t.port_first[cast]; k < t.port_first[cast + 1]; ++k)
            if (t.way[k] < 0 || t.way[k] >= ways || t.to[k] < 0 || static_cast<std::size_t>(t.to[k]) >= workers ||
                t.message[k] < 0 || static_cast<std::size_t>(t.message[k]) >= messages)
                return "a port leads nowhere";
    }
    for (std::size_t turn = 0; turn < t.cast.size(); ++turn) {
        const auto cast = t.cast[turn];
        if (cast < 0 || static_cast<std::size_t>(cast) >= t.piece.size()) return "no such cast";
        for (auto k = t.port_first[cast]; k < t.port_first[cast + 1]; ++k)
            if (t.number[turn] < 0 ||
                static_cast<std::size_t>(t.message[k]) + static_cast<std::size_t>(t.number[turn]) >= messages)
                return "no such message";
    }
    return nullptr;
}

}  // namespace triosim
