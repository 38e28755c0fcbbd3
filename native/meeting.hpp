// Turns of pieces whose transfers meet on links and hold up what is worked on beside them; the rules are those of
// triosim/engine/contended.py.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>
#include <cstdint>
#include <queue>
#include <span>
#include <stdexcept>
#include <vector>

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

class MeetingPlayer {
public:
    enum : std::int8_t { WORK = 0, MOVE = 1, SENDS = 2, RECEIVES = 3 };
    static constexpr std::int64_t NEVER = -1;
    static constexpr double SLOWEST = 1e-6;  // what is left where rounding leaves nothing
    static constexpr std::int64_t FAR = std::int64_t{1} << 61;  // ticks: what comes after this is not played

    MeetingPlayer(const MeetingPieces& pieces, const MeetingTurns& turns, const MeetingWays& ways, std::size_t streams,
                  std::size_t messages, std::size_t labels, std::span<const std::int64_t> host)
        : work(turns.first.size() - 1, 0), talk(work.size(), 0), hosted(work.size(), 0), spent(labels * work.size(), 0),
          p_(pieces), t_(turns), w_(ways), host_(host), streams_(streams), labels_(labels), arrived_(messages, NEVER),
          workers_(work.size()), heads_(workers_.size() * streams), done_(turns.cast.size(), NEVER),
          on_(ways.resources), load_(ways.resources, 0.0), seen_of_(ways.resources, 0) {
        for (std::size_t w = 0; w < workers_.size(); ++w)
            for (std::size_t s = 0; s < streams; ++s) heads_[w * streams + s].turn = t_.first[w];
        const std::size_t count = p_.first.size() - 1;
        rows_first_.assign(count * streams + 1, 0);
        for (std::size_t piece = 0; piece < count; ++piece)
            for (std::size_t s = 0; s < streams; ++s) {
                for (auto row = p_.first[piece]; row < p_.first[piece + 1]; ++row)
                    if (p_.stream[row] == static_cast<std::int8_t>(s)) rows_.push_back(row);
                rows_first_[piece * streams + s + 1] = static_cast<std::int64_t>(rows_.size());
            }
        port_of_.assign(p_.kind.size(), -1);
        for (std::size_t piece = 0; piece < count; ++piece) {
            std::int32_t port = 0;
            for (auto row = p_.first[piece]; row < p_.first[piece + 1]; ++row)
                if (p_.kind[row] >= SENDS) port_of_[row] = port++;
        }
        frees_.assign(p_.kind.size(), 0);
        for (std::size_t piece = 0; piece < count; ++piece)
            for (auto row = p_.first[piece]; row < p_.first[piece + 1]; ++row) {
                if (p_.stream[row] < 0) continue;
                const auto own = std::uint64_t{1} << p_.stream[row];
                frees_[row] |= own;
                for (auto k = p_.offsets[row]; k < p_.offsets[row + 1]; ++k) {
                    const auto other = p_.first[piece] + p_.before[k];
                    (p_.kind[other] == RECEIVES ? fed_ : frees_[other]) |= own;
                }
            }
    }

    bool play() {
        for (std::size_t w = 0; w < workers_.size(); ++w) begin(w, ~std::uint64_t{0} >> (64 - streams_));
        while (!events_.empty()) {
            const auto [at, what, which, version] = events_.top();
            events_.pop();
            if (at > FAR) throw std::invalid_argument(TOO_LONG);
            if (what == TRANSFER) {
                if (transfers_[which].version != version) continue;
                now_ = at;
                delivered(which);
            } else if (what == WORKING || what == HELD) {
                if (workers_[which].version != version) continue;
                now_ = at;
                worked(which);
            } else if (what == ENTERS) {
                now_ = at;
                Transfer& t = transfers_[which];
                t.left -= static_cast<double>(now_ - t.begun);
                t.last = now_;
                enter(which);
            } else {
                now_ = at;
                begin(which, std::uint64_t{1} << version);
            }
        }
        for (std::size_t w = 0; w < workers_.size(); ++w) {
            account(w);
            for (std::size_t s = 0; s < streams_; ++s)
                if (head(w, s) >= 0) return false;
        }
        return true;
    }

    std::int64_t end() const { return now_; }
    std::vector<std::int64_t> work, talk, hosted;  // of each worker
    std::vector<std::int64_t> spent;               // by worker and label

private:
    enum : std::int8_t { TRANSFER = 0, WORKING = 1, WAKES = 2, HELD = 3, ENTERS = 4 };
    struct Head {
        std::int64_t turn = 0, at = 0, woken = NEVER;
        bool busy = false;
    };
    struct Worker {
        std::int64_t row = NEVER, held = NEVER, turn = 0, begun = 0, last = 0, seen = 0;
        double left = 0, rate = 1;
        std::uint32_t version = 0;
        int moves = 0, talks = 0;
    };
    struct Transfer {
        std::size_t worker = 0, to = 0;
        std::int64_t row = 0, turn = 0, begun = 0, last = 0, message = NEVER;
        double left = 0, rate = 1;
        std::uint32_t version = 0;
        std::int32_t way = 0;    // -1 once it has been delivered
        std::size_t first = 0;   // of those that go beside each other: the first, which counts those under way
        std::int64_t parts = 1;
        double next = -1;        // rate that is being worked out
        std::uint64_t seen = 0;  // by which share
    };
    struct Event {
        std::int64_t at;
        std::int8_t what;
        std::size_t which;
        std::uint32_t version;  // of a stream that wakes its number
        auto operator<=>(const Event&) const = default;
    };

    const MeetingPieces& p_;
    const MeetingTurns& t_;
    const MeetingWays& w_;
    std::span<const std::int64_t> host_;
    std::size_t streams_, labels_;
    std::vector<std::int64_t> arrived_;
    std::vector<Worker> workers_;
    std::vector<Head> heads_;
    struct UnderWay {  // a turn
        std::vector<char> ended;  // of its rows, which
        std::int64_t left = 0;    // rows that have not ended
    };
    std::vector<std::int32_t> done_;  // of each turn: where it is in what is under way, NEVER
    std::vector<UnderWay> under_way_;
    std::vector<std::int32_t> spare_;
    std::vector<std::uint64_t> frees_;  // of each row: streams on which something may begin when it has ended
    std::uint64_t fed_ = 0;             // streams with rows that wait for what is received
    struct Use {
        std::size_t id;
        double part;
    };
    std::vector<std::vector<Use>> on_;  // of each resource
    std::vector<double> load_;
    std::vector<std::int64_t> rows_first_, rows_;
    std::vector<std::int32_t> port_of_;
    std::vector<Transfer> transfers_;
    std::vector<std::size_t> unused_, touched_;
    std::vector<std::int32_t> full_;     // resources of which more is wanted than there is
    std::vector<std::uint64_t> seen_of_;  // of each resource, by which share
    std::uint64_t seen_ = 0;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::int64_t now_ = 0;

    std::int32_t piece(std::int64_t turn) const { return t_.piece[t_.cast[turn]]; }
    std::size_t port(std::int64_t turn, std::int64_t row) const {
        return static_cast<std::size_t>(t_.port_first[t_.cast[turn]] + port_of_[row]);
    }
    std::size_t message(std::int64_t turn, std::int64_t row) const {
        return static_cast<std::size_t>(t_.message[port(turn, row)] + t_.number[turn]);
    }

    // The next row of a stream, -1 where there is none.
    std::int64_t head(std::size_t w, std::size_t s) {
        Head& h = heads_[w * streams_ + s];
        while (h.turn < t_.first[w + 1]) {
            const auto list = static_cast<std::size_t>(piece(h.turn)) * streams_ + s;
            if (rows_first_[list] + h.at < rows_first_[list + 1]) return rows_[rows_first_[list] + h.at];
            ++h.turn;
            h.at = 0;
        }
        return NEVER;
    }

    bool ready(std::int64_t turn, std::int64_t row) const {
        const auto first = p_.first[piece(turn)];
        const char* const ended = done_[turn] < 0 ? nullptr : under_way_[static_cast<std::size_t>(done_[turn])].ended.data();
        for (auto k = p_.offsets[row]; k < p_.offsets[row + 1]; ++k) {
            const auto other = first + p_.before[k];
            if (p_.kind[other] == RECEIVES) {
                if (arrived_[message(turn, other)] == NEVER) return false;
            } else if (!ended || !ended[p_.before[k]]) {
                return false;
            }
        }
        return true;
    }

    // Time in which a worker neither changed what it does nor what it talks is added up.
    void account(std::size_t w) {
        Worker& me = workers_[w];
        const auto span = now_ - me.seen;
        if (span > 0) {
            if (me.row != NEVER) work[w] += span;
            else if (me.talks) talk[w] += span;
            else hosted[w] += std::clamp<std::int64_t>(host_[w] - me.seen, 0, span);
        }
        me.seen = now_;
    }

    // Begins what can begin on some streams of a worker: those that something has become free for.
    void begin(std::size_t w, std::uint64_t streams) {
        for (; streams; streams &= streams - 1) {
            const auto s = static_cast<std::size_t>(std::countr_zero(streams));
            if (heads_[w * streams_ + s].busy) continue;
            const auto row = head(w, s);
            if (row < 0) continue;
            const auto turn = heads_[w * streams_ + s].turn;
            if (!ready(turn, row)) continue;
            const auto held = p_.kind[row] == WORK ? 0 : p_.held[row];
            if (const auto issued = t_.release[turn] + held; (p_.kind[row] == WORK || held) && issued > now_) {
                auto& woken = heads_[w * streams_ + s].woken;
                if (woken < issued) events_.push({woken = issued, WAKES, w, static_cast<std::uint32_t>(s)});
                continue;
            }
            start(w, s, turn, row);
        }
    }

    void start(std::size_t w, std::size_t s, std::int64_t turn, std::int64_t row) {
        Head& h = heads_[w * streams_ + s];
        h.busy = true;
        ++h.at;
        if (done_[turn] < 0) {
            const auto which = static_cast<std::size_t>(piece(turn));
            if (spare_.empty()) {
                done_[turn] = static_cast<std::int32_t>(under_way_.size());
                under_way_.emplace_back();
            } else {
                done_[turn] = spare_.back();
                spare_.pop_back();
            }
            auto& own = under_way_[static_cast<std::size_t>(done_[turn])];
            own.ended.assign(static_cast<std::size_t>(p_.first[which + 1] - p_.first[which]), 0);
            own.left = rows_first_[(which + 1) * streams_] - rows_first_[which * streams_];
        }
        if (p_.kind[row] == WORK) {
            account(w);
            Worker& me = workers_[w];
            me.row = row;
            me.turn = turn;
            me.begun = me.last = now_;
            me.left = static_cast<double>(p_.ticks[row]);
            me.rate = me.moves ? 1 / p_.stretch[row] : 1;
            expect(w);
            return;
        }
        const auto id = transfer(w, turn, row);
        Transfer& t = transfers_[id];
        const auto to = t.to;
        const auto way = static_cast<std::size_t>(t.way);
        if (to == w) moving(w, 1);
        talking(w, 1);
        if (to != w) talking(to, 1);
        t.parts = 1 + w_.beside_first[way + 1] - w_.beside_first[way];
        enters(id);
        for (auto k = w_.beside_first[way]; k < w_.beside_first[way + 1]; ++k) {
            const auto other = transfer(w, turn, row);
            transfers_[other].way = w_.beside[k];
            transfers_[other].first = id;
            enters(other);
        }
    }

    // A transfer uses its resources from now on, or after its lag.
    void enters(std::size_t id) {
        const Transfer& t = transfers_[id];
        const auto label = p_.label[t.row];
        const bool shares = w_.first[t.way] < w_.first[t.way + 1];
        const auto lag = label < 0 || !shares ? 0 : std::min(t_.lag[static_cast<std::size_t>(label)], p_.ticks[t.row]);
        if (lag > 0) events_.push({now_ + lag, ENTERS, id, 0});
        else enter(id);
    }

    // A transfer that begins now, before it uses anything.
    std::size_t transfer(std::size_t w, std::int64_t turn, std::int64_t row) {
        std::size_t id;
        if (unused_.empty()) {
            id = transfers_.size();
            transfers_.emplace_back();
        } else {
            id = unused_.back();
            unused_.pop_back();
        }
        Transfer& t = transfers_[id];
        t.worker = t.to = w;
        t.row = row;
        t.turn = turn;
        t.begun = t.last = now_;
        t.left = static_cast<double>(p_.ticks[row]);
        t.rate = 0;
        t.message = NEVER;
        t.way = w_.own[w];
        t.first = id;
        if (p_.kind[row] == SENDS) {
            const auto which = port(turn, row);
            t.way = t_.way[which];
            t.to = static_cast<std::size_t>(t_.to[which]);
            t.message = static_cast<std::int64_t>(message(turn, row));
        }
        return id;
    }

    void enter(std::size_t id) {
        const auto way = transfers_[id].way;
        for (auto k = w_.first[way]; k < w_.first[way + 1]; ++k) {
            on_[w_.resource[k]].push_back({id, w_.part[k]});
            load_[w_.resource[k]] += w_.part[k];
        }
        if (w_.first[way] == w_.first[way + 1]) rated(id, 1);
        else share(way);
    }

    void talking(std::size_t w, int change) {
        account(w);
        workers_[w].talks += change;
    }

    void moving(std::size_t w, int change) {
        Worker& me = workers_[w];
        const bool before = me.moves > 0;
        me.moves += change;
        if (before == (me.moves > 0) || me.row == NEVER || p_.stretch[me.row] == 1) return;
        me.left -= static_cast<double>(now_ - me.last) * me.rate;
        me.last = now_;
        me.rate = me.moves ? 1 / p_.stretch[me.row] : 1;
        expect(w);
    }

    void expect(std::size_t w) {
        Worker& me = workers_[w];
        events_.push({now_ + ticks(me.left, me.rate), WORKING, w, ++me.version});
    }

    static std::int64_t ticks(double left, double rate) {
        if (left <= 0) return 0;
        const double whole = std::ceil(left / rate - 1e-6);
        return whole < static_cast<double>(FAR) ? static_cast<std::int64_t>(whole) : FAR + 1;
    }

    // Rates of what uses some resources, and of all that shares something with it.  All go equally fast until a resource is
    // full; those on it stay as fast as they are, and the others share what they leave (max-min).
    void share(std::int32_t way) {
        touched_.clear();
        full_.clear();
        ++seen_;
        for (auto k = w_.first[way]; k < w_.first[way + 1]; ++k) found(w_.resource[k], false);
        for (std::size_t at = 0; at < touched_.size(); ++at) {
            const auto of = transfers_[touched_[at]].way;
            for (auto k = w_.first[of]; k < w_.first[of + 1]; ++k)
                if (load_[w_.resource[k]] > 1) found(w_.resource[k], true);
        }
        while (true) {
            double least = 1;
            std::int32_t which = -1;
            for (const auto r : full_) {
                double room = 1, wanted = 0;
                for (const auto& [id, part] : on_[r]) {
                    const double now = transfers_[id].next;
                    if (now >= 0) room -= part * now;
                    else wanted += part;
                }
                if (wanted > 0 && room / wanted < least) {
                    least = room / wanted;
                    which = r;
                }
            }
            if (which < 0) break;
            least = std::max(least, SLOWEST);
            for (const auto& [id, part] : on_[which])
                if (transfers_[id].next < 0) transfers_[id].next = least;
        }
        for (const auto one : touched_) {
            Transfer& t = transfers_[one];
            rated(one, t.next < 0 ? 1 : t.next);
        }
    }

    void found(std::int32_t resource, bool other) {
        if (seen_of_[resource] == seen_) return;
        seen_of_[resource] = seen_;
        if (load_[resource] > 1) full_.push_back(resource);
        else if (other) return;
        for (const auto& [id, part] : on_[resource])
            if (transfers_[id].seen != seen_) {
                transfers_[id].seen = seen_;
                transfers_[id].next = -1;
                touched_.push_back(id);
            }
    }

    void rated(std::size_t id, double now) {
        Transfer& t = transfers_[id];
        if (now == t.rate) return;
        t.left -= static_cast<double>(now_ - t.last) * t.rate;
        t.last = now_;
        t.rate = now;
        events_.push({now_ + ticks(t.left, t.rate), TRANSFER, id, ++t.version});
    }

    // Streams on which something may begin now.
    std::uint64_t finished(std::size_t w, std::int64_t turn, std::int64_t row, std::int64_t begun) {
        heads_[w * streams_ + static_cast<std::size_t>(p_.stream[row])].busy = false;
        auto& own = under_way_[static_cast<std::size_t>(done_[turn])];
        own.ended[static_cast<std::size_t>(row - p_.first[piece(turn)])] = 1;
        if (!--own.left) {  // nothing asks for it any more
            spare_.push_back(done_[turn]);
            done_[turn] = NEVER;
        }
        if (p_.label[row] >= 0) spent[w * labels_ + static_cast<std::size_t>(p_.label[row])] += now_ - begun;
        return frees_[row];
    }

    void worked(std::size_t w) {
        account(w);
        Worker& me = workers_[w];
        const auto row = me.row == NEVER ? me.held : me.row;
        me.row = me.held = NEVER;
        if (const auto until = t_.release[me.turn] + p_.held[row]; until > now_) {  // its host is not that far
            me.held = row;
            events_.push({until, HELD, w, ++me.version});
            return;
        }
        begin(w, finished(w, me.turn, row, me.begun));
    }

    void delivered(std::size_t id) {
        Transfer t = transfers_[id];
        ++transfers_[id].version;
        transfers_[id].way = -1;
        for (auto k = w_.first[t.way]; k < w_.first[t.way + 1]; ++k) {
            auto& own = on_[w_.resource[k]];
            own.erase(std::ranges::find(own, id, &Use::id));
            load_[w_.resource[k]] = 0;
            for (const auto& use : own) load_[w_.resource[k]] += use.part;
        }
        share(t.way);
        if (id != t.first) unused_.push_back(id);
        if (--transfers_[t.first].parts > 0) return;  // others beside it are under way
        unused_.push_back(t.first);
        talking(t.worker, -1);
        if (t.to != t.worker) talking(t.to, -1);
        if (t.to == t.worker) moving(t.worker, -1);
        if (t.message != NEVER) arrived_[t.message] = now_;
        const auto freed = finished(t.worker, t.turn, t.row, t.begun);
        begin(t.worker, t.to == t.worker && t.message != NEVER ? freed | fed_ : freed);
        if (t.to != t.worker) begin(t.to, fed_);
    }
};

// What is wrong with columns that would make the player read where nothing is, nullptr where nothing is.
inline const char* why_wrong(const MeetingPieces& p, const MeetingTurns& t, const MeetingWays& w, std::size_t streams,
                             std::size_t messages, std::size_t labels, std::span<const std::int64_t> host) {
    using Player = MeetingPlayer;
    const auto rising = [](std::span<const std::int64_t> ends, std::size_t last) {
        return !ends.empty() && ends.front() == 0 && std::ranges::is_sorted(ends) &&
               static_cast<std::size_t>(ends.back()) == last;
    };
    const std::size_t rows = p.kind.size(), workers = t.first.empty() ? 0 : t.first.size() - 1;
    if (!rising(p.first, rows) || p.stream.size() != rows || p.ticks.size() != rows || p.stretch.size() != rows ||
        p.label.size() != rows || p.held.size() != rows || p.offsets.size() != rows + 1 || !rising(p.offsets, p.before.size()))
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
    const auto far = [](std::int64_t tick) { return tick < -Player::FAR || tick > Player::FAR; };
    if (std::ranges::any_of(t.release, far) || std::ranges::any_of(p.held, far) || std::ranges::any_of(host, far))
        return TOO_LONG;
    for (std::size_t piece = 0; piece + 1 < p.first.size(); ++piece)
        for (auto row = p.first[piece]; row < p.first[piece + 1]; ++row) {
            const bool receives = p.kind[row] == Player::RECEIVES;
            if (p.kind[row] < Player::WORK || p.kind[row] > Player::RECEIVES || p.ticks[row] < 0 || p.held[row] < 0 ||
                (receives ? p.stream[row] != -1
                          : p.stream[row] < 0 || static_cast<std::size_t>(p.stream[row]) >= streams) ||
                !(p.stretch[row] >= 1) || p.label[row] < -1 ||
                (p.label[row] >= 0 && static_cast<std::size_t>(p.label[row]) >= labels))
                return "a row of a piece has no such kind, stream, time or label";
            if (p.kind[row] == Player::WORK && p.stream[row] != 0) return "what works is on stream 0";
            for (auto k = p.offsets[row]; k < p.offsets[row + 1]; ++k)
                if (p.before[k] < 0 || p.before[k] >= row - p.first[piece]) return "a row must wait for earlier rows";
        }
    for (std::size_t cast = 0; cast < t.piece.size(); ++cast) {
        if (t.piece[cast] < 0 || static_cast<std::size_t>(t.piece[cast]) + 1 >= p.first.size()) return "no such piece";
        std::int64_t ports = 0;
        for (auto row = p.first[t.piece[cast]]; row < p.first[t.piece[cast] + 1]; ++row)
            ports += p.kind[row] >= Player::SENDS;
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

// One pass through some operators of a step: when each is worked on, when its collectives are under way.
struct Chain {
    std::span<const std::int64_t> ticks, gap, issue;              // of each operator
    std::span<const std::int8_t> skips;                           // of each operator
    std::span<const std::int64_t> after_first, before_first, need_first;  // of each operator, and the end
    std::span<const std::int32_t> after, before, need;            // collectives
    std::span<const std::int64_t> call;                           // ticks of each collective
    std::int64_t call_issue;
    double slowdown;
};

struct Chained {
    std::vector<std::int64_t> begin, done, issued;       // of each row
    std::vector<std::int64_t> call_begin, call_end;      // of each collective, -1 for those that were not called
    std::int64_t host = 0, end = 0;
};

// No row of a pass is worked on, and none of its collectives under way, later than this, in ticks.
inline double lasts(const Chain& c, std::span<const std::int32_t> rows) {
    double longest = 0, sum = 0;
    for (const std::int64_t call : c.call) longest = std::max(longest, std::abs(static_cast<double>(call)));
    for (const std::int32_t number : rows) {
        const auto row = static_cast<std::size_t>(number);
        const auto called = c.after_first[row + 1] - c.after_first[row] + c.before_first[row + 1] - c.before_first[row];
        sum += std::abs(static_cast<double>(c.ticks[row])) * c.slowdown + std::abs(static_cast<double>(c.gap[row])) +
               std::abs(static_cast<double>(c.issue[row])) +
               static_cast<double>(called) * (longest + std::abs(static_cast<double>(c.call_issue)));
    }
    return sum;
}

// Plays rows twice, so that the second time follows upon one like it, and counts from its begin.
inline Chained chain(const Chain& c, std::span<const std::int32_t> rows, std::span<const std::int8_t> calls,
                     bool hosted) {
    Chained out;
    const std::size_t n = rows.size();
    out.begin.assign(n, 0);
    out.done.assign(n, 0);
    out.issued.assign(n, 0);
    out.call_begin.assign(c.call.size(), -1);
    out.call_end.assign(c.call.size(), -1);
    std::int64_t host = 0, free = 0, talks = 0, talked = 0;  // talks: the collective under way, until talked
    const auto calling = [&](std::int32_t number, std::int64_t ready) {
        if (!calls[static_cast<std::size_t>(number)]) return;
        if (hosted) host += c.call_issue;
        const auto at = std::max({ready, talked, hosted ? host : 0});
        if (at > talked) talks = at;
        talked = at + c.call[static_cast<std::size_t>(number)];
        out.call_begin[static_cast<std::size_t>(number)] = at;
        out.call_end[static_cast<std::size_t>(number)] = talked;
    };
    for (std::size_t i = 0; i < n; ++i) {
        const auto row = static_cast<std::size_t>(rows[i]);
        for (auto k = c.before_first[row]; k < c.before_first[row + 1]; ++k) calling(c.before[k], free);
        std::int64_t ready = free;
        for (auto k = c.need_first[row]; k < c.need_first[row + 1]; ++k)
            ready = std::max(ready, out.call_end[static_cast<std::size_t>(c.need[k])]);
        if (!c.skips[row]) {
            if (hosted) {
                host += c.issue[row];
                ready = std::max(ready, host);
            }
            std::int64_t ticks = c.ticks[row];
            const auto from = std::max(talks, ready);
            if (c.slowdown > 1 && talked > from && ready + ticks > from) {
                const auto alone = from - ready;  // worked before the collective is under way
                const auto beside = static_cast<double>(talked - from) / c.slowdown;
                const auto rest = static_cast<double>(ticks - alone);
                ticks = alone + (rest <= beside ? static_cast<std::int64_t>(std::llround(rest * c.slowdown))
                                                : (talked - from) + static_cast<std::int64_t>(std::llround(rest - beside)));
            }
            out.begin[i] = ready;
            out.done[i] = ready + ticks;
            free = ready + ticks + c.gap[row];
        } else {
            free = std::max(free, ready);
            out.begin[i] = out.done[i] = free;
        }
        out.issued[i] = host;
        for (auto k = c.after_first[row]; k < c.after_first[row + 1]; ++k) calling(c.after[k], free);
    }
    out.host = host;
    out.end = free;
    return out;
}

}  // namespace triosim
