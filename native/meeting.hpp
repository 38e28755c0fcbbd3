// Turns of pieces whose transfers meet on links and hold up what is worked on beside them; the rules are those of
// triosim/engine/contended.py.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>
#include <cstdint>
#include <deque>
#include <queue>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "meeting_columns.hpp"
#include "queue.hpp"
#include "repeated_turns.hpp"

namespace triosim {

class MeetingPlayer {
public:
    enum : std::int8_t {
        WORK = MeetingKind::WORK, MOVE = MeetingKind::MOVE, SENDS = MeetingKind::SENDS, RECEIVES = MeetingKind::RECEIVES
    };
    static constexpr std::int64_t NEVER = -1;
    static constexpr double SLOWEST = 1e-6;  // what is left where rounding leaves nothing
    static constexpr std::int64_t FAR = MEETING_FAR;

    MeetingPlayer(const MeetingPieces& pieces, const MeetingTurns& turns, const MeetingWays& ways, std::size_t streams,
                  std::size_t messages, std::size_t labels, std::span<const std::int64_t> host)
        : work(turns.first.size() - 1, 0), talk(work.size(), 0), hosted(work.size(), 0), spent(labels * work.size(), 0),
          p_(pieces), t_(turns), w_(ways), host_(host), streams_(streams), labels_(labels), arrived_(messages, NEVER),
          workers_(work.size()), heads_(workers_.size() * streams), done_(turns.cast.size(), NEVER),
          on_(ways.resources), load_(ways.resources, 0.0), seen_of_(ways.resources, 0), repeats_(turns) {
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
        for (std::size_t way = 0; way + 1 < w_.beside_first.size(); ++way)
            width_ = std::max(width_, 1 + static_cast<std::size_t>(w_.beside_first[way + 1] - w_.beside_first[way]));
        transfers_.resize(workers_.size() * streams_ * width_);
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
        stretches();
    }

    bool play() {
        for (std::size_t w = 0; w < workers_.size(); ++w) begin(w, ~std::uint64_t{0} >> (64 - streams_));
        while (!events_.empty()) {
            const auto [at, what, which, version] = events_.top();
            events_.pop();
            const Turn own{what, which};
            last_ = at == last_at_ ? std::max(last_, own) : own;
            last_at_ = at;
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
                --wakes_;
                begin(which, std::uint64_t{1} << version);
            }
            if (repeats_.shift && heads_[0].turn >= mark_) look();
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
    std::int64_t left_out = 0;                     // turns that were not played, as they repeat others

private:
    enum : std::int8_t { TRANSFER = 0, WORKING = 1, WAKES = 2, HELD = 3, ENTERS = 4 };
    struct Head {
        std::int64_t turn = 0, at = 0, woken = NEVER;
        bool busy = false;
    };
    struct Worker {
        std::int64_t row = NEVER, held = NEVER, turn = 0, begun = 0, last = 0, seen = 0, due = 0;
        std::int64_t final = NEVER, until = 0;  // of the stretch of the row: the last row, and when that ends
        std::int64_t exposed = 0, gap = 0;  // ticks of the row without compute that have been added up
        double left = 0, rate = 1;
        double beside = 1;  // how many times longer what it moves takes beside its row
        std::uint32_t version = 0;
        int moves = 0, uses = 0, talks = 0;  // uses: of what moves that which uses its resources by now
    };
    struct Transfer {
        std::size_t worker = 0, to = 0;
        std::int64_t row = 0, turn = 0, begun = 0, last = 0, message = NEVER, due = 0;
        double left = 0, rate = 1;
        double share = 0;  // rate but for what is worked on beside it
        std::uint32_t version = 0;
        std::int32_t way = 0;    // -1 once it has been delivered
        std::size_t first = 0;   // of those that go beside each other: the first, which counts those under way
        std::int64_t parts = 1;
        bool used = false, entered = false;  // whether it is under way, and uses its resources
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
    std::vector<std::int64_t> arrived_;  // of each message: the how many it was to arrive, from 1
    std::vector<std::int64_t> arrivals_;  // messages in that order
    std::vector<Worker> workers_;
    std::vector<Head> heads_;
    struct UnderWay {  // a turn
        std::vector<char> ended;  // of its rows, which
        std::int64_t left = 0;    // rows that have not ended
        std::int64_t turn = 0;
        std::size_t worker = 0;
    };
    std::vector<std::int32_t> done_;  // of each turn: where it is in what is under way, NEVER
    std::vector<UnderWay> under_way_;
    std::vector<std::int32_t> spare_;
    std::vector<std::int64_t> final_;        // of each row of work: the last of its stretch
    std::vector<std::int64_t> alone_, slow_;  // of each row: ticks with nothing beside it, and beside what moves
    using Turn = std::pair<std::int8_t, std::size_t>;
    Turn last_{};                 // of what has happened at the last tick: the last in order
    std::int64_t last_at_ = NEVER;  // that tick
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
    std::size_t width_ = 1;  // numbers of transfers of each stream
    std::vector<std::size_t> touched_;
    std::vector<std::int32_t> full_;     // resources of which more is wanted than there is
    std::vector<std::uint64_t> seen_of_;  // of each resource, by which share
    RepeatedTurns repeats_;
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

    // Rows of work that nothing waits for, and that wait for nothing, are one stretch with the row after them: only its end
    // happens, and where it is comes to light when something else happens to its worker.
    void stretches() {
        std::vector<char> awaited(p_.kind.size(), 0);
        for (std::size_t piece = 0; piece + 1 < p_.first.size(); ++piece)
            for (auto k = p_.offsets[p_.first[piece]]; k < p_.offsets[p_.first[piece + 1]]; ++k)
                awaited[p_.first[piece] + p_.before[k]] = 1;
        final_.assign(p_.kind.size(), NEVER);
        alone_.assign(p_.kind.size(), 0);
        slow_.assign(p_.kind.size(), 0);
        for (std::size_t piece = 0; piece + 1 < p_.first.size(); ++piece)
            for (auto row = p_.first[piece + 1] - 1; row >= p_.first[piece]; --row) {
                if (p_.kind[row] != WORK) continue;
                alone_[row] = ticks(static_cast<double>(p_.ticks[row]), 1);
                slow_[row] = ticks(static_cast<double>(p_.ticks[row]), 1 / p_.stretch[row]);
                const auto next = row + 1;
                const bool goes_on = next < p_.first[piece + 1] && p_.kind[next] == WORK && !awaited[row] &&
                                     p_.offsets[next] == p_.offsets[next + 1] && p_.label[row] < 0 &&
                                     p_.held[row] == 0 && p_.beside[row] == p_.beside[next];
                final_[row] = goes_on ? final_[next] : row;
            }
    }

    // Goes on to the row of its stretch that a worker has come to, or to the last.
    void catch_up(std::size_t w, bool to_the_last = false) {
        Worker& me = workers_[w];
        if (me.row == NEVER) return;
        while (me.row < me.final &&
               (to_the_last || me.due < now_ || (me.due == now_ && last_at_ == now_ && last_ > Turn{WORKING, w}))) {
            until(w, me.due);
            ++me.row;
            me.begun = me.last = me.due;
            me.exposed = me.gap = 0;
            me.left = static_cast<double>(p_.ticks[me.row]);
            me.rate = pace(me);
            me.due += lasts(me, me.row);
        }
    }

    // Ticks of a row of a worker's stretch that begins.
    std::int64_t lasts(const Worker& me, std::int64_t row) const { return slowed(me) ? slow_[row] : alone_[row]; }

    // Time in which a worker neither changed what it does nor what it talks is added up.
    void account(std::size_t w) {
        catch_up(w);
        until(w, now_);
    }

    void until(std::size_t w, std::int64_t now) {
        if (workers_[w].seen < host_[w] && host_[w] < now) account(w, host_[w]);
        account(w, now);
    }

    void account(std::size_t w, std::int64_t now) {
        Worker& me = workers_[w];
        const auto span = now - me.seen;
        if (span <= 0) return;
        auto nothing = span;  // without compute and what is moved within it
        if (me.row != NEVER) {
            const double ticks = static_cast<double>(p_.ticks[me.row]), of = std::max(ticks, 1.0);
            double done = static_cast<double>(now - me.begun), more = 0;  // more: waits for what it moves itself
            if (p_.beside[me.row] > 1) {
                const double spent = done;
                done = ticks - (me.left - static_cast<double>(now - me.last) * me.rate);
                more = spent - done;
            }
            const auto exposed =
                static_cast<std::int64_t>(more + done / of * static_cast<double>(p_.exposed[me.row]));
            const auto gap = static_cast<std::int64_t>(done / of * static_cast<double>(p_.gap[me.row]));
            nothing = gap - me.gap;
            talk[w] += exposed - me.exposed;
            work[w] += span - (exposed - me.exposed) - nothing;
            me.exposed = exposed;
            me.gap = gap;
        } else if (me.held != NEVER) {
            const auto which = static_cast<std::size_t>(piece(me.turn));
            const auto exposed =
                static_cast<std::int64_t>(p_.held_exposed[which] * static_cast<double>(now - me.last));
            nothing -= exposed - me.exposed;
            talk[w] += exposed - me.exposed;
            me.exposed = exposed;
        }
        if (me.talks) talk[w] += nothing;
        else if (now <= host_[w]) hosted[w] += nothing;
        me.seen = now;
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
                ++waited_;
                if (woken < issued) {
                    events_.push({woken = issued, WAKES, w, static_cast<std::uint32_t>(s)});
                    ++wakes_;
                }
                continue;
            }
            start(w, s, turn, row);
        }
        beside(w);
    }

    // What a worker moves goes as fast as what it works on leaves it.
    void beside(std::size_t w) {
        Worker& me = workers_[w];
        const double now = me.row == NEVER ? 1 : p_.beside[me.row];
        if (now == me.beside) return;
        me.beside = now;
        for (std::size_t id = w * streams_ * width_; id < (w + 1) * streams_ * width_; ++id) {
            const Transfer& t = transfers_[id];
            if (t.used && t.way >= 0 && t.share > 0 && p_.kind[t.row] == MOVE) rated(id, t.share);
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
            own.turn = turn;
            own.worker = w;
        }
        if (p_.kind[row] == WORK) {
            account(w);
            Worker& me = workers_[w];
            me.row = row;
            me.turn = turn;
            me.begun = me.last = now_;
            me.exposed = me.gap = 0;
            me.left = static_cast<double>(p_.ticks[row]);
            me.rate = pace(me);
            me.due = now_ + lasts(me, row);
            me.final = final_[row];
            h.at += me.final - row;
            under_way_[static_cast<std::size_t>(done_[turn])].left -= me.final - row;
            me.until = ends(me);
            expect(w);
            return;
        }
        const auto id = (w * streams_ + s) * width_;
        transfer(id, w, turn, row);
        Transfer& t = transfers_[id];
        const auto to = t.to;
        const auto way = static_cast<std::size_t>(t.way);
        if (to == w) moving(w, 1);
        talking(w, 1);
        if (to != w) talking(to, 1);
        t.parts = 1 + w_.beside_first[way + 1] - w_.beside_first[way];
        enters(id);
        for (auto k = w_.beside_first[way]; k < w_.beside_first[way + 1]; ++k) {
            const auto other = id + static_cast<std::size_t>(k - w_.beside_first[way]) + 1;
            transfer(other, w, turn, row);
            transfers_[other].way = w_.beside[k];
            transfers_[other].first = id;
            enters(other);
        }
    }

    // A transfer uses its resources from now on, or after its lag.
    void enters(std::size_t id) {
        const Transfer& t = transfers_[id];
        const auto label = p_.label[t.row];
        const bool shares = w_.first[t.way] < w_.first[t.way + 1] || p_.kind[t.row] == MOVE;
        const auto lag = label < 0 || !shares ? 0 : std::min(t_.lag[static_cast<std::size_t>(label)], p_.ticks[t.row]);
        if (lag > 0) events_.push({transfers_[id].due = now_ + lag, ENTERS, id, 0});
        else enter(id);
    }

    // A transfer that begins now, before it uses anything.  Each stream of a worker has one at most, and its number, and
    // those of what goes beside it, are the stream's: what happens at once is in order of these.
    void transfer(std::size_t id, std::size_t w, std::int64_t turn, std::int64_t row) {
        Transfer& t = transfers_[id];
        t.worker = t.to = w;
        t.row = row;
        t.turn = turn;
        t.begun = t.last = now_;
        t.left = static_cast<double>(p_.ticks[row]);
        t.rate = t.share = 0;
        t.message = NEVER;
        t.used = true;
        t.entered = false;
        t.parts = 1;
        t.way = w_.own[w];
        t.first = id;
        if (p_.kind[row] == SENDS) {
            const auto which = port(turn, row);
            t.way = t_.way[which];
            t.to = static_cast<std::size_t>(t_.to[which]);
            t.message = static_cast<std::int64_t>(message(turn, row));
        }
    }

    void enter(std::size_t id) {
        const auto way = transfers_[id].way;
        transfers_[id].entered = true;
        if (p_.kind[transfers_[id].row] == MOVE) {
            catch_up(transfers_[id].worker);
            ++workers_[transfers_[id].worker].uses;
            paced(transfers_[id].worker);
        }
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
        catch_up(w);
        workers_[w].moves += change;
        paced(w);
    }

    // How fast a worker goes on beside what it moves.
    double pace(const Worker& me) const { return slowed(me) ? 1 / p_.stretch[me.row] : 1; }
    bool slowed(const Worker& me) const { return p_.beside[me.row] > 1 ? me.uses : me.moves; }

    void paced(std::size_t w) {
        Worker& me = workers_[w];
        if (me.row == NEVER) return;
        const double now = pace(me);
        const bool other = now != me.rate;
        if (other) {
            account(w);
            me.left -= static_cast<double>(now_ - me.last) * me.rate;
            me.last = now_;
            me.rate = now;
            me.due = now_ + ticks(me.left, me.rate);
        }
        const auto until = ends(me);
        if (!other && until == me.until) return;
        me.until = until;
        expect(w);
    }

    // When the stretch of a worker ends if nothing else happens to it.
    std::int64_t ends(const Worker& me) const {
        auto end = me.due;
        for (auto row = me.row + 1; row <= me.final && end <= FAR; ++row) end += lasts(me, row);
        return end;
    }

    void expect(std::size_t w) {
        Worker& me = workers_[w];
        events_.push({me.until, WORKING, w, ++me.version});
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

    void rated(std::size_t id, double share) {
        Transfer& t = transfers_[id];
        t.share = share;
        const double now = p_.kind[t.row] == MOVE ? share / workers_[t.worker].beside : share;
        if (now == t.rate) return;
        t.left -= static_cast<double>(now_ - t.last) * t.rate;
        t.last = now_;
        t.rate = now;
        events_.push({t.due = now_ + ticks(t.left, t.rate), TRANSFER, id, ++t.version});
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
        catch_up(w, true);
        account(w);
        Worker& me = workers_[w];
        const auto row = me.row == NEVER ? me.held : me.row;
        me.row = me.held = NEVER;
        if (const auto until = t_.release[me.turn] + p_.held[row]; until > now_) {  // its host is not that far
            me.held = row;
            me.last = now_;
            me.exposed = 0;
            ++waited_;
            events_.push({me.due = until, HELD, w, ++me.version});
            beside(w);
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
        if (p_.kind[t.row] == MOVE) {
            catch_up(t.worker);
            --workers_[t.worker].uses;
            paced(t.worker);
        }
        if (id != t.first) transfers_[id].used = false;
        if (--transfers_[t.first].parts > 0) return;  // others beside it are under way
        transfers_[t.first].used = false;
        talking(t.worker, -1);
        if (t.to != t.worker) talking(t.to, -1);
        if (t.to == t.worker) moving(t.worker, -1);
        if (t.message != NEVER) arrive(t.message);
        const auto freed = finished(t.worker, t.turn, t.row, t.begun);
        begin(t.worker, t.to == t.worker && t.message != NEVER ? freed | fed_ : freed);
        if (t.to != t.worker) begin(t.to, fed_);
    }

    void arrive(std::int64_t message) {
        arrivals_.push_back(message);
        arrived_[static_cast<std::size_t>(message)] = static_cast<std::int64_t>(arrivals_.size());
    }

    // --- turns that repeat --------------------------------------------------------------------------------------------

    // All that decides what comes next, counted from now and from the turns that the workers are at, and what has been
    // added up until now.  Where it is as it was some periods before, all comes again as it came since, until the turns are
    // others.
    struct Moment {
        std::int64_t at = 0, waited = 0;
        std::size_t arrived = 0;
        std::vector<std::int64_t> oldest;  // of each worker: the first turn under way, or the next to be worked on
        std::vector<Head> heads;
        std::vector<std::int64_t> state, work, talk, hosted, spent;
    };
    static constexpr std::size_t SEVERAL = 4;  // periods after which all may be as it was
    static constexpr int PATIENCE = 16;        // periods in a row that are looked at, before some are passed over
    static constexpr int LONGEST_PAUSE = 64;

    std::int64_t mark_ = 0;    // turn of the first worker at which to look again
    std::int64_t waited_ = 0;  // how often something was held up by its host
    std::int64_t wakes_ = 0;   // events to come that wake a stream
    int misses_ = 0, pause_ = 0;
    std::deque<Moment> before_;  // the last first
    std::vector<std::int64_t> lowest_, highest_;  // turns of each worker that a period has to do with
    std::vector<std::int64_t> awaited_;           // messages for which streams wait that rest

    void look() {
        mark_ = heads_[0].turn + repeats_.turns[0];
        if (pause_ > 0) {
            --pause_;
            return;
        }
        for (std::size_t w = 0; w < workers_.size(); ++w) account(w);
        const Moment now = moment();
        for (std::size_t number = 0; number < before_.size(); ++number) {
            const auto periods = static_cast<std::int64_t>(number) + 1;
            if (repeats(before_[number], now, periods) && leave_out(before_[number], now, periods)) {
                before_.clear();
                misses_ = 0;
                mark_ = heads_[0].turn + repeats_.turns[0];
                return;
            }
        }
        if (before_.size() == SEVERAL && ++misses_ > PATIENCE) {
            pause_ = std::min(misses_ - PATIENCE, LONGEST_PAUSE);
            before_.clear();
            return;
        }
        before_.push_front(now);
        if (before_.size() > SEVERAL) before_.pop_back();
    }

    Moment moment() const {
        Moment m{now_, waited_, arrivals_.size(), {}, heads_, {}, work, talk, hosted, spent};
        const auto turn = [&](std::size_t w) { return heads_[w * streams_].turn; };
        for (std::size_t w = 0; w < workers_.size(); ++w) m.oldest.push_back(turn(w));
        auto& state = m.state;
        const auto bits = [](double value) { return std::bit_cast<std::int64_t>(value); };
        for (std::size_t w = 0; w < workers_.size(); ++w) {
            const Worker& me = workers_[w];
            const bool busy = me.row != NEVER || me.held != NEVER;
            state.insert(state.end(), {me.row, me.held, me.moves, me.uses, me.talks});
            if (busy)
                state.insert(state.end(), {me.turn - turn(w), me.begun - now_, me.last - now_, me.due - now_,
                                           bits(me.left), bits(me.rate)});
        }
        for (std::size_t id = 0; id < transfers_.size(); ++id) {
            const Transfer& t = transfers_[id];
            if (!t.used) continue;
            state.insert(state.end(), {static_cast<std::int64_t>(id), static_cast<std::int64_t>(t.worker),
                                       static_cast<std::int64_t>(t.to), t.row, t.turn - turn(t.worker), t.begun - now_,
                                       t.last - now_, t.way < 0 ? 0 : t.due - now_, bits(t.left), bits(t.rate), bits(t.share),
                                       t.way, static_cast<std::int64_t>(t.first), t.parts, t.entered});
        }
        state.push_back(NEVER);
        for (std::size_t r = 0; r < on_.size(); ++r) {
            if (on_[r].empty()) continue;
            state.insert(state.end(), {NEVER, static_cast<std::int64_t>(r), bits(load_[r])});
            for (const auto& use : on_[r]) state.push_back(static_cast<std::int64_t>(use.id));
        }
        std::vector<const UnderWay*> under_way;
        for (const auto& one : under_way_)
            if (one.left) under_way.push_back(&one);
        std::ranges::sort(under_way, {}, [](const UnderWay* one) { return one->turn; });
        for (const auto* one : under_way) {
            m.oldest[one->worker] = std::min(m.oldest[one->worker], one->turn);
            state.insert(state.end(), {NEVER, one->turn - turn(one->worker), one->left});
            state.insert(state.end(), one->ended.begin(), one->ended.end());
        }
        return m;
    }

    // Whether all is as it was so many periods before, so that it comes again as it came since.
    bool repeats(const Moment& a, const Moment& b, std::int64_t periods) {
        const auto took = b.at - a.at;
        if (wakes_ || a.waited != b.waited || took <= 0 || a.state != b.state) return false;
        lowest_ = a.oldest;
        highest_.assign(workers_.size(), 0);
        awaited_.clear();
        for (std::size_t w = 0; w < workers_.size(); ++w) {
            const auto period = periods * repeats_.turns[w];
            if (periods * repeats_.later[w] > took) return false;
            for (std::size_t s = 0; s < streams_; ++s) {
                const Head &then = a.heads[w * streams_ + s], &now = b.heads[w * streams_ + s];
                if (then.at != now.at || then.busy != now.busy) return false;
                if (now.turn - then.turn != period) {
                    if (s == 0 || now.busy || now.turn != then.turn) return false;
                    continue;
                }
                lowest_[w] = std::min(lowest_[w], then.turn);
                highest_[w] = std::max(highest_[w], std::min(now.turn, t_.first[w + 1] - 1));
            }
            const auto last = highest_[w] + period - repeats_.turns[w];  // all periods are to be of turns that repeat
            if (lowest_[w] >= t_.first[w + 1] || repeats_.until[lowest_[w]] <= last) return false;
            for (std::size_t s = 1; s < streams_; ++s)
                if (a.heads[w * streams_ + s].turn == b.heads[w * streams_ + s].turn && !rests(w, s)) return false;
            for (auto turn = lowest_[w]; turn <= highest_[w]; ++turn) {
                const auto which = piece(turn);
                for (auto row = p_.first[which]; row < p_.first[which + 1]; ++row) {
                    if (p_.kind[row] != RECEIVES) continue;
                    const auto then = arrived_[message(turn, row)], now = arrived_[message(turn + period, row)];
                    if ((then != NEVER && then <= static_cast<std::int64_t>(a.arrived)) != (now != NEVER)) return false;
                }
            }
        }
        return true;
    }

    // Whether a stream has nothing to do until the turns are others.
    bool rests(std::size_t w, std::size_t s) {
        const Head& h = heads_[w * streams_ + s];
        if (h.turn >= t_.first[w + 1]) return true;
        const auto list = static_cast<std::size_t>(piece(h.turn)) * streams_ + s;
        if (rows_first_[list] + h.at >= rows_first_[list + 1]) return h.turn < lowest_[w];  // not looked for since
        if (h.turn < repeats_.until[lowest_[w]]) return false;
        const auto row = rows_[static_cast<std::size_t>(rows_first_[list] + h.at)], first = p_.first[piece(h.turn)];
        std::int64_t waits = NEVER;
        for (auto k = p_.offsets[row]; k < p_.offsets[row + 1]; ++k) {
            const auto other = first + p_.before[k];
            if (p_.kind[other] != RECEIVES) return done_[h.turn] < 0;  // waits for what has not begun
            const auto awaited = message(h.turn, other);
            if (arrived_[awaited] == NEVER) waits = static_cast<std::int64_t>(awaited);
        }
        if (waits != NEVER) awaited_.push_back(waits);
        return waits != NEVER;
    }

    // Goes on after so many more periods as are like the one between two moments; false where there are none.
    bool leave_out(const Moment& a, const Moment& b, std::int64_t periods) {
        const auto took = b.at - a.at;
        std::int64_t times = (FAR - now_) / took - 1;
        for (std::size_t w = 0; w < workers_.size(); ++w) {
            times = std::min(times, (repeats_.until[lowest_[w]] - highest_[w]) / (periods * repeats_.turns[w]));
            if (host_[w] > a.at) times = std::min(times, (host_[w] - b.at) / took);  // it is busy all the time
        }
        if (times < 1) return false;
        const auto shift = periods * repeats_.shift;
        for (auto k = a.arrived; k < b.arrived; ++k)
            for (const auto awaited : awaited_) {
                const auto ahead = awaited - arrivals_[k];
                if (ahead > 0 && ahead % shift == 0 && ahead / shift <= times) return false;
            }
        const auto later = times * took;
        const auto more = [&](std::vector<std::int64_t>& sums, const std::vector<std::int64_t>& then) {
            for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += times * (sums[i] - then[i]);
        };
        more(work, a.work);
        more(talk, a.talk);
        more(hosted, a.hosted);
        more(spent, a.spent);
        now_ += later;
        events_ = {};
        for (std::size_t w = 0; w < workers_.size(); ++w) {
            Worker& me = workers_[w];
            const auto ahead = times * periods * repeats_.turns[w];
            left_out += ahead;
            me.begun += later;
            me.last += later;
            me.seen = now_;
            me.due += later;
            me.until += later;
            me.turn += ahead;
            if (me.row != NEVER) events_.push({me.until, WORKING, w, me.version});
            for (std::size_t s = 0; s < streams_; ++s)
                if (a.heads[w * streams_ + s].turn != b.heads[w * streams_ + s].turn)
                    heads_[w * streams_ + s].turn += ahead;
        }
        for (const auto& one : under_way_)
            if (one.left) done_[one.turn] = NEVER;
        for (std::size_t which = 0; which < under_way_.size(); ++which) {
            UnderWay& one = under_way_[which];
            if (!one.left) continue;
            one.turn += times * periods * repeats_.turns[one.worker];
            done_[one.turn] = static_cast<std::int32_t>(which);
        }
        for (std::size_t id = 0; id < transfers_.size(); ++id) {
            Transfer& t = transfers_[id];
            if (!t.used) continue;
            t.begun += later;
            t.last += later;
            t.due += later;
            t.turn += times * periods * repeats_.turns[t.worker];
            if (t.message != NEVER) t.message = static_cast<std::int64_t>(message(t.turn, t.row));
            if (t.way < 0) continue;
            if (t.entered) events_.push({t.due, TRANSFER, id, t.version});
            else events_.push({t.due, ENTERS, id, 0});
        }
        for (std::int64_t n = 1; n <= times; ++n)
            for (auto k = a.arrived; k < b.arrived; ++k) arrive(arrivals_[k] + n * shift);
        return true;
    }
};

}  // namespace triosim
