// A pass of a stage in a few rows: its script is run with what its operators take; the rules are those of
// triosim/search/contracted_passes.py and operator_chain.py.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "check.hpp"
#include "graph.hpp"
#include "operator_chain.hpp"
#include "queue.hpp"

namespace triosim {

struct CallSpan {
    std::int64_t begin, moving, end;
    CallSpan after(std::int64_t ticks) const {
        return {std::max<std::int64_t>(begin - ticks, 0), std::max<std::int64_t>(moving - ticks, 0),
                std::max<std::int64_t>(end - ticks, 0)};
    }
};

// Collectives by their number, in the order in which they were called.
using UnderWay = std::vector<std::pair<std::int32_t, CallSpan>>;

struct Stretch {
    std::int64_t ticks;
    double slowdown;
    std::int64_t gap, exposed;
    double collective_slowdown = 1.0;
};

// What the operators of a step, and collectives between them, take.
struct PassChain {
    Chain chain;
    std::span<const std::int64_t> lags;   // of each collective
    std::span<const std::int8_t> always;  // whether each is called in every pass
    std::int64_t gap, send_launch;
    double met, filled;  // how many times longer collectives take beside those of another axis
    bool hosted;

    bool shared() const { return met > 1; }
    bool called(std::int32_t call, bool final) const { return final || always[static_cast<std::size_t>(call)]; }

    // Collectives of some operators that wait for none of them.
    std::vector<std::int32_t> leading(std::span<const std::int32_t> rows, bool final) const {
        std::vector<std::int32_t> found;
        const auto add = [&](std::span<const std::int64_t> first, std::span<const std::int32_t> calls, std::size_t row) {
            for (auto k = first[row]; k < first[row + 1]; ++k) {
                const auto call = calls[static_cast<std::size_t>(k)];
                if (called(call, final)) found.push_back(call);
            }
        };
        for (const std::int32_t number : rows) {
            const auto row = static_cast<std::size_t>(number);
            add(chain.before_first, chain.before, row);
            if (!chain.skips[row]) break;
            add(chain.after_first, chain.after, row);
        }
        return found;
    }

    static double slowed(std::int64_t ticks, double slowdown, std::int64_t gap) {
        return ticks ? slowdown - (slowdown - 1) * static_cast<double>(gap) / static_cast<double>(ticks) : 1.0;
    }

    // What else is computed from tick 0 on, and the gap after it, cut where collectives begin, move and end.
    std::vector<Stretch> beside(std::int64_t ticks, std::int64_t after, const UnderWay& calls,
                                std::int64_t since) const {
        std::vector<Stretch> found;
        std::int64_t at = 0;
        auto left = static_cast<double>(ticks);
        const auto until = [&](std::int64_t end, double slows, double meets, double fills) {
            const auto took = std::min(end - at, static_cast<std::int64_t>(std::floor(left * slows + 0.5)));
            if (took <= 0) return;
            found.push_back({took, meets, 0, 0, fills});
            at += took;
            left -= static_cast<double>(took) / slows;
        };
        for (const auto& [_, call] : calls) {
            const CallSpan span = call.after(since);
            until(span.begin, 1.0, chain.slowdown, 1.0);
            until(span.moving, chain.slowdown, 1.0, 1.0);
            until(span.end, chain.slowdown, met, filled);
        }
        const auto last = static_cast<std::int64_t>(std::floor(std::max(left, 0.0) + 0.5));
        if (last + after || found.empty())
            found.push_back({last + after, slowed(last + after, chain.slowdown, after), after, 0});
        return found;
    }
};

// Disjoint ascending spans.
struct DisjointSpans {
    std::vector<std::int64_t> begin, end;
    // Whether half of a moment lies within one.
    bool hold(std::int64_t twice) const {
        const auto number = std::ranges::upper_bound(begin, twice, {}, [](std::int64_t b) { return 2 * b; }) -
                            begin.begin() - 1;
        return number >= 0 && twice < 2 * end[static_cast<std::size_t>(number)];
    }
};

// When an operator chain computes nothing.
class UnusedTicks {
public:
    std::int64_t exposed = 0;  // ticks of the collectives in all

    UnusedTicks() = default;
    UnusedTicks(const DisjointSpans& works, const DisjointSpans& calls) {
        ends_.push_back(0);
        for (const DisjointSpans* spans : {&works, &calls}) {
            ends_.insert(ends_.end(), spans->begin.begin(), spans->begin.end());
            ends_.insert(ends_.end(), spans->end.begin(), spans->end.end());
        }
        std::ranges::sort(ends_);
        gap_.assign(ends_.size(), 0);
        exposed_.assign(ends_.size(), 0);
        std::size_t work = 0, call = 0;  // the first that begins later
        for (std::size_t k = 0; k + 1 < ends_.size(); ++k) {
            const auto twice = ends_[k] + ends_[k + 1], ticks = ends_[k + 1] - ends_[k];
            while (work < works.begin.size() && 2 * works.begin[work] <= twice) ++work;
            while (call < calls.begin.size() && 2 * calls.begin[call] <= twice) ++call;
            const bool computes = work && twice < 2 * works.end[work - 1];
            const bool moves = call && twice < 2 * calls.end[call - 1];
            gap_[k + 1] = gap_[k] + (computes || moves ? 0 : ticks);
            exposed_[k + 1] = exposed_[k] + (!computes && moves ? ticks : 0);
        }
        exposed = exposed_.back();
    }

    // Ticks before a moment in which nothing is done, and in which there are collectives only.
    std::pair<std::int64_t, std::int64_t> until(std::int64_t at) const {
        const auto later = std::ranges::upper_bound(ends_, at) - ends_.begin();
        if (!later) return {gap_.front(), exposed_.front()};
        const auto k = static_cast<std::size_t>(later - 1);
        if (k + 1 == ends_.size()) return {gap_[k] + at - ends_[k], exposed_[k]};
        const auto into = at - ends_[k];
        return {gap_[k] + (gap_[k + 1] > gap_[k] ? into : 0), exposed_[k] + (exposed_[k + 1] > exposed_[k] ? into : 0)};
    }

private:
    std::vector<std::int64_t> ends_, gap_, exposed_;
};

// Some operators of a chain one after another; ticks from the first.
class PlayedChain {
public:
    std::vector<std::int64_t> free, issued, host_delay;  // of each operator
    std::vector<std::int32_t> calls;                     // those that are called, ascending by their beginning
    std::vector<std::int64_t> begin, end, moving;        // of these, after those that were under way at the beginning
    std::int64_t host = 0;
    double waiting_exposed = 0;

    PlayedChain(const PassChain& of, std::span<const std::int32_t> rows, bool final, const UnderWay& before) : of_(of) {
        const Chain& c = of.chain;
        const auto leading = of.leading(rows, final);
        std::vector<std::int8_t> called(c.call.size());
        for (std::size_t k = 0; k < called.size(); ++k) called[k] = of.called(static_cast<std::int32_t>(k), final);
        for (const auto call : leading) called[static_cast<std::size_t>(call)] = 0;
        std::vector<std::int64_t> none(c.call.size(), -1), under_way = none;
        for (const auto& [call, span] : before) {
            under_way[static_cast<std::size_t>(call)] = span.end;
            begin.push_back(span.begin);
            moving.push_back(span.moving);
            end.push_back(span.end);
        }
        const Chained run = triosim::chain(c, rows, called, under_way, false);
        free = freed(rows, run.done);
        calls = in_order(run.call_begin);
        for (const auto call : calls) {
            const auto k = static_cast<std::size_t>(call);
            begin.push_back(run.call_begin[k]);
            moving.push_back(std::min(run.call_begin[k] + of.lags[k], run.call_end[k]));
            end.push_back(run.call_end[k]);
        }
        unused_ = UnusedTicks(works(rows, run), {begin, end});
        issued.assign(rows.size(), 0);
        host_delay.assign(rows.size(), 0);
        if (of.hosted) {
            const Chained late = triosim::chain(c, rows, called, none, true);
            const auto led = c.call_issue * static_cast<std::int64_t>(leading.size());
            issued = late.issued;
            host_delay = freed(rows, late.done);
            for (auto& each : issued) each += led;
            for (auto& each : host_delay) each += led;
            const auto waits = rows.empty() ? 0 : host_delay.back() - free.back();
            if (waits > 0 && !calls.empty()) {
                DisjointSpans moved;
                for (const auto call : in_order(late.call_begin, calls)) {
                    moved.begin.push_back(late.call_begin[static_cast<std::size_t>(call)]);
                    moved.end.push_back(late.call_end[static_cast<std::size_t>(call)]);
                }
                const UnusedTicks waited(works(rows, late), moved);
                const auto more = static_cast<double>(waited.exposed - unused_.exposed) / static_cast<double>(waits);
                waiting_exposed = std::min(std::max(more, 0.0), 1.0);
            }
        }
        for (std::size_t k = 0; k < rows.size(); ++k) {
            const auto row = static_cast<std::size_t>(rows[k]);
            const auto was_free = at(k);
            host += c.issue[row];
            if (run.begin[k] > was_free && !c.skips[row]) {
                idle_.begin.push_back(was_free);
                idle_.end.push_back(run.begin[k]);
            }
        }
        host += c.call_issue * static_cast<std::int64_t>(calls.size() + leading.size());
    }

    // When the stream is free before an operator.
    std::int64_t at(std::size_t row) const { return row ? free[row - 1] : 0; }

    // When the last of some collectives has ended, 0 where none was called.
    std::int64_t ended(std::span<const std::int32_t> some) const {
        std::int64_t found = 0;
        for (std::size_t k = 0; k < calls.size(); ++k)
            if (std::ranges::find(some, calls[k]) != some.end()) found = std::max(found, end[earlier() + k]);
        return found;
    }

    // Collectives that have not ended when the last operator has, counted from then.
    UnderWay under_way() const {
        UnderWay found;
        const auto last = at(free.size());
        for (std::size_t k = 0; k < calls.size(); ++k) {
            const auto n = earlier() + k;
            if (end[n] > last) found.push_back({calls[k], CallSpan{begin[n], moving[n], end[n]}.after(last)});
        }
        return found;
    }

    // What lies between two ticks, cut where what is done beside another collective changes.
    std::vector<Stretch> between(std::int64_t from, std::int64_t until) {
        std::vector<Stretch> found;
        if (until <= from) return found;
        stretches();
        auto cut = std::ranges::upper_bound(cuts_, from) - cuts_.begin();
        const auto last = std::ranges::lower_bound(cuts_, until) - cuts_.begin();
        auto was = unused_.until(from);
        for (auto at = from; at < until; ++cut) {
            const auto next = cut < last ? cuts_[static_cast<std::size_t>(cut)] : until;
            const auto is = unused_.until(next);
            const auto slows = slowdown_[static_cast<std::size_t>(cut)];
            const auto tensor = collective_[static_cast<std::size_t>(cut)];
            const auto ticks = next - at, gap = is.first - was.first;
            found.push_back({ticks, tensor > 1 ? slows : PassChain::slowed(ticks, slows, gap), gap,
                             is.second - was.second, tensor});
            at = next;
            was = is;
        }
        return found;
    }

    // Operators first .. last - 1, cut likewise.
    std::vector<Stretch> segments(std::size_t first, std::size_t last) {
        auto found = between(at(first), at(last));
        if (found.empty()) found.push_back({0, 1.0, 0, 0});
        return found;
    }

    // All between two ticks as one stretch.
    Stretch average(std::int64_t from, std::int64_t until) {
        const auto was = unused_.until(from), is = unused_.until(until);
        return {until - from, slowdown_between(from, until), is.first - was.first, is.second - was.second};
    }

private:
    const PassChain& of_;
    DisjointSpans idle_;  // when the stream has nothing to compute
    UnusedTicks unused_;
    bool cut_ = false;
    std::vector<std::int64_t> cuts_;
    std::vector<double> slowdown_, collective_;  // before each of these and after the last

    std::size_t earlier() const { return end.size() - calls.size(); }

    std::vector<std::int64_t> freed(std::span<const std::int32_t> rows, const std::vector<std::int64_t>& done) const {
        std::vector<std::int64_t> found(rows.size());
        for (std::size_t k = 0; k < rows.size(); ++k) {
            const auto row = static_cast<std::size_t>(rows[k]);
            found[k] = of_.chain.skips[row] ? done[k] : done[k] + of_.chain.gap[row];
            if (k) found[k] = std::max(found[k], found[k - 1]);
        }
        return found;
    }

    DisjointSpans works(std::span<const std::int32_t> rows, const Chained& run) const {
        DisjointSpans found;
        for (std::size_t k = 0; k < rows.size(); ++k)
            if (!of_.chain.skips[static_cast<std::size_t>(rows[k])]) {
                found.begin.push_back(run.begin[k]);
                found.end.push_back(run.done[k]);
            }
        return found;
    }

    // Those of some collectives that were called, ascending by their beginning.
    static std::vector<std::int32_t> in_order(const std::vector<std::int64_t>& begins, std::vector<std::int32_t> some) {
        std::ranges::stable_sort(some, {}, [&](std::int32_t call) { return begins[static_cast<std::size_t>(call)]; });
        return some;
    }
    static std::vector<std::int32_t> in_order(const std::vector<std::int64_t>& begins) {
        std::vector<std::int32_t> called;
        for (std::size_t k = 0; k < begins.size(); ++k)
            if (begins[k] >= 0) called.push_back(static_cast<std::int32_t>(k));
        return in_order(begins, std::move(called));
    }

    double slowdown_between(std::int64_t from, std::int64_t until) {
        if (!(of_.chain.slowdown > 1 || of_.shared()) || from == until) return 1.0;
        double sum = 0;
        for (const Stretch& one : between(from, until)) sum += static_cast<double>(one.ticks) * one.slowdown;
        return sum / static_cast<double>(until - from);
    }

    // Which collectives are waited for at their end, or followed at once by one that is.
    std::vector<bool> waited() const {
        std::vector<bool> found(end.size());
        for (std::size_t k = 0; k < end.size(); ++k) found[k] = idle_.hold(2 * end[k] - 1);
        for (std::size_t k = end.size(); k-- > 1;) found[k - 1] = found[k - 1] || (found[k] && begin[k] == end[k - 1]);
        return found;
    }

    void stretches() {
        if (std::exchange(cut_, true)) return;
        for (const auto* column : {&begin, &end, &idle_.begin, &idle_.end, &(of_.shared() ? moving : begin)})
            cuts_.insert(cuts_.end(), column->begin(), column->end());
        std::ranges::sort(cuts_);
        cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
        const DisjointSpans called{begin, end}, moves{moving, end};
        DisjointSpans bound;
        if (of_.shared()) {
            const auto waits = waited();
            for (std::size_t k = 0; k < end.size(); ++k)
                if (waits[k]) {
                    bound.begin.push_back(begin[k]);
                    bound.end.push_back(end[k]);
                }
        }
        for (std::size_t k = 0; k <= cuts_.size(); ++k) {
            const auto twice = !k ? -2 : k == cuts_.size() ? 2 * cuts_[k - 1] + 2 : cuts_[k - 1] + cuts_[k];
            const bool idle = idle_.hold(twice);
            double slows = called.hold(twice) || idle ? 1.0 : of_.chain.slowdown, tensor = 1.0;
            if (of_.shared() && moves.hold(twice)) {
                if (idle || bound.hold(twice)) slows = of_.met;
                tensor = of_.filled;
            }
            slowdown_.push_back(slows);
            collective_.push_back(tensor);
        }
    }
};

// Steps of a script, see triosim/search/pass_script.py.
enum class StepKind : std::int64_t { receive, lead, call, copy, play, work, send, follow, aside, reduce, ready };
constexpr std::int32_t COMPLETE = -2;

struct PassStep {
    std::int64_t kind, one, two, stream, port;
};

struct PassScript {
    std::span<const std::int32_t> rows;
    std::span<const PassStep> steps;
    Ragged<std::int32_t> before, late;
    std::span<const std::int32_t> once;
    std::span<const std::int64_t> times;  // ticks and number of each transfer
    bool final, fine, leads;
};

constexpr std::size_t STEP_COLUMNS = sizeof(PassStep) / sizeof(std::int64_t);
constexpr std::int64_t PASS_STREAMS = 7;

// What is wrong with a script that would make it read where nothing is, nullptr where nothing is.
inline const char* why_wrong(const PassChain& of, const PassScript& script) {
    const auto count = static_cast<std::int64_t>(of.chain.ticks.size());
    const auto calls = static_cast<std::int64_t>(of.chain.call.size());
    const auto rows = static_cast<std::int64_t>(script.rows.size());
    const auto transfers = static_cast<std::int64_t>(script.times.size()) / 2;
    if (script.before.size() != script.steps.size() || script.late.size() != script.steps.size() ||
        !well_formed(script.before) || !well_formed(script.late) || script.times.size() % 2)
        return "columns of a script must be of one length";
    if (!within(script.rows, 0, count) || !within(script.once, 0, calls) || !within(script.late.values, 0, calls))
        return "a script has no such operator or collective";
    double longest = 2 * lasts(of.chain, script.rows) + all_together(script.times) + all_together(of.chain.call);
    std::int64_t first = 0, last = -1;  // places of the operators that run
    for (std::size_t k = 0; k < script.steps.size(); ++k) {
        const PassStep& step = script.steps[k];
        if (step.kind < 0 || step.kind > static_cast<std::int64_t>(StepKind::ready)) return "no such step";
        if (step.stream < -1 || step.stream >= PASS_STREAMS) return "no such stream";
        if (!within(script.before[k], COMPLETE, static_cast<std::int64_t>(k)) ||
            std::ranges::find(script.before[k], -1) != script.before[k].end())
            return "a step must wait for earlier steps";
        const auto inside = [&](std::int64_t place) { return place >= first && place <= last; };
        bool good = true;
        switch (static_cast<StepKind>(step.kind)) {
            case StepKind::lead: good = step.one >= 0 && step.one < calls; break;
            case StepKind::call: good = step.one >= 0 && step.one < transfers && step.stream >= 0; break;
            case StepKind::copy:
                good = step.one >= 0;
                longest += static_cast<double>(step.one) * of.chain.slowdown;
                break;
            case StepKind::play:
                good = step.one >= 0 && step.one <= step.two && step.two <= rows;
                first = step.one, last = step.two;
                break;
            case StepKind::work: good = inside(step.one) && inside(step.two) && step.one <= step.two; break;
            case StepKind::send: good = inside(step.two) && step.one >= 0 && step.one < transfers; break;
            case StepKind::follow: good = inside(step.one); break;
            case StepKind::ready: good = step.stream >= 0; break;
            default: break;
        }
        if (!good) return "a step of a pass is beyond its operators or transfers";
        longest += std::abs(static_cast<double>(of.chain.call_issue)) + std::abs(static_cast<double>(of.send_launch)) +
                   std::abs(static_cast<double>(of.gap));
    }
    return longest <= MOST_TICKS ? nullptr : TOO_LONG;
}

// Columns of the rows of a pass, see triosim/search/block_rows.py.
struct PassRow {
    std::int64_t kind, stream, label, ticks, slowdown, waits, leads, gap, exposed, collective_slowdown;
};
constexpr std::size_t PASS_COLUMNS = sizeof(PassRow) / sizeof(std::int64_t);

// Runs one script.
class PassRun {
public:
    std::vector<PassRow> facts;
    std::vector<std::int64_t> host_delay, before;
    std::vector<std::int32_t> ports;
    std::int64_t host = 0, reduces = -1;
    double waiting_exposed = 0;

    PassRun(const PassChain& of, const PassScript& script)
        : of_(of), script_(script), exchanged_(script.once.size(), -1) {
        for (std::size_t step = 0; step < script.steps.size(); ++step) last_.push_back(run(step));
        if (reduces < 0) reduces = static_cast<std::int64_t>(facts.size());
    }

private:
    enum : std::int64_t { COMPUTES, COLLECTIVE, SENDS, RECEIVES };
    enum : std::int64_t { COMPUTE_STREAM = 0, SEND_STREAM = 2, EARLY_STREAM = 4 };

    const PassChain& of_;
    const PassScript& script_;
    std::vector<std::int64_t> last_;  // row of each step
    std::int64_t complete_ = -1;
    std::vector<std::int64_t> exchanged_;  // row in which each collective of `once` ends, -1 before
    std::vector<PlayedChain> played_;  // the operators that run, no more than one
    std::size_t first_ = 0;
    std::vector<std::int64_t> exchanges_;  // when each of these ends
    std::int64_t issues_ = 0, free_ = 0, left_ = 0, sending_ = 0, since_ = 0;
    UnderWay under_way_;
    std::vector<std::int64_t> waits_;

    std::int64_t run(std::size_t number) {
        const PassStep& step = script_.steps[number];
        waits_.clear();
        for (const std::int32_t other : script_.before[number]) {
            const auto row = other == COMPLETE ? complete_ : last_[static_cast<std::size_t>(other)];
            if (row >= 0) waits_.push_back(row);
        }
        const auto one = static_cast<std::size_t>(step.one), two = static_cast<std::size_t>(step.two);
        switch (static_cast<StepKind>(step.kind)) {
            case StepKind::receive: return port(step, RECEIVES, -1, 0);
            case StepKind::lead: return port(step, SENDS, EARLY_STREAM, of_.chain.call[one]);
            case StepKind::call: {
                for (const std::int32_t call : script_.late[number]) {
                    const auto found = std::ranges::find(script_.once, call);
                    if (found == script_.once.end()) continue;
                    const auto row = exchanged_[static_cast<std::size_t>(found - script_.once.begin())];
                    if (row >= 0) waits_.push_back(row);
                }
                host += of_.chain.call_issue;
                const auto delay = host - of_.chain.call_issue;
                return add({COLLECTIVE, step.stream, script_.times[2 * one + 1], script_.times[2 * one], 0, 0, 0, 0, 0, 0},
                           delay);
            }
            case StepKind::copy: {
                host += of_.chain.call_issue;
                const auto segments = of_.beside(step.one, of_.gap * step.two, under_way_, since_);
                for (const Stretch& segment : segments) since_ += segment.ticks;
                return work(segments, 0, segments.size(), 0);
            }
            case StepKind::play: return play(one, two);
            case StepKind::work: return work(step, one, two);
            case StepKind::send: {
                const auto more = std::max<std::int64_t>(
                    played().ended(script_.late[number]) - played().at(two - first_), 0);
                host += of_.send_launch;
                sending_ = std::max<std::int64_t>(sending_ + of_.send_launch, 0);
                return port(step, SENDS, SEND_STREAM, script_.times[2 * one] + more, script_.times[2 * one + 1],
                            sending_);
            }
            case StepKind::follow: follow(one); return -1;
            case StepKind::aside: return script_.leads ? port(step, SENDS, EARLY_STREAM, 0) : -1;
            case StepKind::reduce:
                reduces = static_cast<std::int64_t>(facts.size());
                complete_ = waits_.empty() ? -1 : waits_.back();
                if (left_) {
                    waits_.clear();
                    complete_ = add({COMPUTES, COMPUTE_STREAM, -1, left_, 0, 0, 0, 0, left_, 0}, 0);
                    for (std::size_t k = 0; k < exchanges_.size(); ++k)
                        if (exchanges_[k] > free_) exchanged_[k] = complete_;
                }
                return -1;
            case StepKind::ready: return port(step, SENDS, step.stream, 0);
        }
        return -1;
    }

    PlayedChain& played() { return played_.back(); }

    // One more row, which waits for those of `waits_`: of each stream for the last.
    std::int64_t add(PassRow row, std::int64_t delay, double slowdown = 1.0, double collective_slowdown = 1.0) {
        std::ranges::sort(waits_);
        waits_.erase(std::unique(waits_.begin(), waits_.end()), waits_.end());
        const auto first = before.end() - before.begin();
        std::uint64_t followed = 0;  // streams of which a later row is waited for
        for (std::size_t k = waits_.size(); k-- > 0;) {
            const PassRow& other = facts[static_cast<std::size_t>(waits_[k])];
            const auto stream = other.kind == RECEIVES ? 0 : std::uint64_t{1} << other.stream;
            if (followed & stream) continue;
            followed |= stream;
            before.push_back(waits_[k]);
            ++row.waits;
        }
        std::reverse(before.begin() + first, before.end());
        row.slowdown = std::bit_cast<std::int64_t>(slowdown);
        row.collective_slowdown = std::bit_cast<std::int64_t>(collective_slowdown);
        facts.push_back(row);
        host_delay.push_back(delay);
        return static_cast<std::int64_t>(facts.size()) - 1;
    }

    // One more that leads somewhere.
    std::int64_t port(const PassStep& step, std::int64_t kind, std::int64_t stream, std::int64_t ticks,
                      std::int64_t label = -1, std::int64_t delay = 0) {
        ports.push_back(static_cast<std::int32_t>(step.port));
        return add({kind, stream, label, ticks, 0, 0, 1, 0, 0, 0}, delay);
    }

    // Stretches of work one after another; the last ends when its host is that far.
    std::int64_t work(const std::vector<Stretch>& segments, std::size_t first, std::size_t end, std::int64_t delay) {
        for (std::size_t k = first; k < end; ++k) {
            const Stretch& one = segments[k];
            add({COMPUTES, COMPUTE_STREAM, -1, one.ticks, 0, 0, 0, one.gap, one.exposed, 0}, k + 1 == end ? delay : 0,
                one.slowdown, one.collective_slowdown);
            waits_.clear();
        }
        return static_cast<std::int64_t>(facts.size()) - 1;
    }

    std::int64_t play(std::size_t first, std::size_t last) {
        UnderWay before;
        for (const auto& [call, span] : under_way_)
            if (span.end > since_) before.push_back({call, span.after(since_)});
        played_.clear();
        played_.emplace_back(of_, script_.rows.subspan(first, last - first), script_.final, before);
        first_ = first;
        issues_ = host - of_.chain.call_issue;
        host += played().host;
        waiting_exposed = std::max(waiting_exposed, played().waiting_exposed);
        exchanges_.clear();
        free_ = played().at(last - first), left_ = 0;
        if (script_.final)
            for (const std::int32_t& call : script_.once) {
                exchanges_.push_back(played().ended({&call, 1}));
                left_ = std::max(left_, exchanges_.back() - free_);
            }
        return -1;
    }

    std::int64_t work(const PassStep& step, std::size_t place, std::size_t mark) {
        const bool any = mark > first_;
        const auto delay = any ? std::max<std::int64_t>(issues_ + played().host_delay[mark - first_ - 1], 0) : 0;
        sending_ = any ? issues_ + played().issued[mark - first_ - 1] : issues_;
        const auto from = played().at(place - first_), until = played().at(mark - first_);
        if (script_.fine) {
            const auto segments = played().segments(place - first_, mark - first_);
            const auto row = work(segments, 0, segments.size(), delay);
            const auto count = static_cast<std::int64_t>(segments.size());
            for (std::size_t k = 0; k < exchanges_.size(); ++k) {
                if (from >= exchanges_[k]) continue;
                std::int64_t reached = 0, sum = 0;
                while (reached < count && (sum += segments[static_cast<std::size_t>(reached)].ticks) < exchanges_[k] - from)
                    ++reached;
                exchanged_[k] = row - count + std::min(reached + 1, count);
            }
            return row;
        }
        std::int64_t ended = 0;
        for (const auto end : played().end) ended = std::max(ended, end);
        if (!(script_.leads && from < ended && ended < until)) return work({played().average(from, until)}, 0, 1, delay);
        const std::vector<Stretch> both{played().average(from, ended), played().average(ended, until)};
        waits_.assign({work(both, 0, 1, 0)});
        port(step, SENDS, EARLY_STREAM, 0);
        waits_.clear();
        return work(both, 1, 2, delay);
    }

    // Collectives of the next operators begin at once, one after another.
    void follow(std::size_t place) {
        under_way_ = played().under_way();
        since_ = 0;
        std::int64_t at = 0;
        for (const auto& [_, span] : under_way_) at = std::max(at, span.end);
        for (const auto call : of_.leading(script_.rows.subspan(place), script_.final)) {
            const auto until = at + of_.chain.call[static_cast<std::size_t>(call)];
            const CallSpan span{at, std::min(at + of_.lags[static_cast<std::size_t>(call)], until), until};
            const auto known = std::ranges::find(under_way_, call, &UnderWay::value_type::first);
            if (known == under_way_.end())
                under_way_.push_back({call, span});
            else
                known->second = span;
            at = until;
        }
    }
};

}  // namespace triosim
