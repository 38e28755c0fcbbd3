// The engine: the same ticks as triosim/engine/reference.py, which is the specification and tells the idea.
#pragma once

#include <functional>
#include <queue>
#include <tuple>

#include "collective.hpp"
#include "network.hpp"

namespace triosim {

class Engine {
public:
    // start, finish: where the ticks are written to.  alone: whether collectives that share no link may be advanced
    // without asking the network model.  formulas: and without playing their transfers, where there is a closed form.
    // poll: called now and then, so that a long run can be given up.
    Engine(const Graph& graph, const Roads& roads, Network& network, std::span<Tick> start, std::span<Tick> finish,
           bool alone, bool formulas, std::function<void()> poll)
        : graph_(graph), roads_(roads), network_(network), start_(start), finish_(finish),
          collectives_(*this, graph, roads, alone && network.alone_at_capacity && !network.pays_latency, formulas),
          poll_(std::move(poll)), waiting_(graph.size()), need_(graph.need.begin(), graph.need.end()),
          next_(graph.size(), NONE),
          flows_on_(roads.capacity.size(), 0), tokens_(graph.tokens.begin(), graph.tokens.end()),
          takers_(graph.tokens.size()) {}

    // Play from tick 0 until nothing is left to happen; false if a task ends later than can be counted.
    bool play() {
        sweep();
        do {
            if (queue_.now() == BEYOND) break;
            happen();
            while (give()) happen();
            if (asked_ || !joined_.empty() || !left_.empty()) share();
            if (++instants_ % 4096 == 0) poll();
        } while (queue_.advance());
        if (std::ranges::find(finish_, BEYOND) != finish_.end()) return false;
        // The end of a flow that cannot be counted is not noted in the queue, for it may be taken back.
        const bool goes_on = queue_.now() == BEYOND || network_.wake() == BEYOND || network_.next() == BEYOND ||
                             std::ranges::find(due_, BEYOND) != due_.end();
        return !goes_on || std::ranges::find(finish_, NEVER) == finish_.end();
    }

    // Tasks that have not started show NEVER.
    void mark_stuck() {
        for (std::size_t task = 0; task < finish_.size(); ++task) {
            if (finish_[task] == NEVER && waiting_[task] > 0) start_[task] = NEVER;
        }
    }

    Tick begin_of(std::int32_t instance) const { return collectives_.begin_of(instance); }
    std::int64_t events() const { return events_; }

    // ------------------------------------------------------------------ what collectives ask of their host

    Tick now() const { return queue_.now(); }
    void poll() const { poll_(); }
    bool busy(std::int32_t link) const { return flows_on_[static_cast<std::size_t>(link)] > 0; }
    Tick until_join(std::int32_t route) const {
        return network_.pays_latency ? 0 : roads_.latency[static_cast<std::size_t>(route)];
    }
    void schedule_begin(Tick tick, std::int32_t instance) { schedule(tick, What::begin, instance); }
    void schedule_end(Tick tick, std::int32_t instance) { schedule(tick, What::end, instance); }
    void schedule_step(Tick tick, std::int32_t instance, std::size_t edge) {
        schedule(tick, What::step, instance, static_cast<std::int32_t>(edge));
    }
    void flow(std::int32_t route, Work work, std::int32_t instance, std::int32_t edge) {
        add(route, work, {route, NONE, instance, edge});
    }
    void finish(std::int32_t task) {
        settle(task, now());
        proceed();
    }

private:
    static constexpr std::int32_t NONE = -1;
    static constexpr std::int32_t UNSEEN = -1;  // in waiting_, until the task has been looked at

    enum class What : std::uint64_t { due, end, count, join, step, begin, wake, put, take, next };

    struct Moving {  // what a flow is: a TRANSFER, or if `task` is NONE a transfer of an edge of a collective
        std::int32_t route, task, instance, edge;
    };
    using Taker = std::pair<Tick, std::int32_t>;  // tick of being ready, row
    struct Stop {  // a task whose predecessors are being placed: the one on its stream, and the next of the others
        std::int32_t task, held;
        std::int64_t entry;
    };

    void schedule(Tick tick, What what, std::int32_t who, std::int32_t edge = 0) {
        queue_.push(tick, static_cast<std::uint64_t>(what) << 60 | static_cast<std::uint64_t>(edge) << 30 |
                              static_cast<std::uint64_t>(who));
    }

    // ---------------------------------------------------------------------------------------- time

    // All that the queue holds for this tick; collectives begin when all else has happened.
    void happen() {
        for (std::size_t i = 0;; ++i) {
            if (i == queue_.present().size()) {
                queue_.clear_present();
                if (begins_.empty()) return;
                const std::int32_t instance = begins_.top();
                begins_.pop();
                collectives_.begin(instance);
                i = static_cast<std::size_t>(-1);
                continue;
            }
            constexpr std::uint64_t low = (std::uint64_t{1} << 30) - 1;
            const std::uint64_t event = queue_.present()[i].what;
            const auto who = static_cast<std::int32_t>(event & low), edge = static_cast<std::int32_t>(event >> 30 & low);
            switch (static_cast<What>(event >> 60)) {
                case What::due: due(who); break;
                case What::end: collectives_.end(who); break;
                case What::count: count(who); break;
                case What::join: join(who); break;
                case What::step: collectives_.step(who, static_cast<std::size_t>(edge)); break;
                case What::begin: begins_.push(who); break;
                case What::wake: asked_ = asked_ || network_.wake() == now(); break;
                case What::put: put(who); break;
                case What::take: take(who); break;
                case What::next: next(); break;
            }
        }
    }

    // --------------------------------------------------------------------------------------- tasks

    // Settle all that waits for nothing but tasks that can be settled; what is left waits in `after_`.  Row by row, as long
    // as few rows wait for rows after them; else each after all that it waits for.
    void sweep() {
        std::ranges::fill(finish_, NEVER);
        WaitingPairs edges;
        if (in_any_order()) {
            std::ranges::fill(waiting_, UNSEEN);
            const std::vector<std::int32_t> held = held_by_stream();
            for (std::int32_t task = 0; task < static_cast<std::int32_t>(graph_.size()); ++task) go_to(task, held, edges);
        } else {
            std::vector<std::int32_t> last(static_cast<std::size_t>(graph_.streams), NONE);
            for (std::int32_t task = 0; task < static_cast<std::int32_t>(graph_.size()); ++task) {
                const std::int32_t stream = graph_.stream[static_cast<std::size_t>(task)];
                place(task, stream < 0 ? NONE : std::exchange(last[static_cast<std::size_t>(stream)], task), edges);
            }
        }
        after_ = Successors(graph_.size(), std::move(edges));
        for (std::int32_t task = 0; task < static_cast<std::int32_t>(graph_.size()); ++task) {
            // Only what waited for a row after it can have been settled without being told.
            const auto at = static_cast<std::size_t>(task);
            if (finish_[at] != NEVER && (next_[at] != NONE || !after_[task].empty())) ahead_.push_back(task);
        }
        proceed();
    }

    // Whether a quarter of the rows, of some that are looked at, wait for rows after them.
    bool in_any_order() const {
        const std::size_t rows = graph_.size(), looked_at = std::min<std::size_t>(rows, 1024);
        std::size_t found = 0;
        for (std::size_t i = 0; i < looked_at; ++i) {
            const std::size_t row = i * rows / looked_at;
            const auto last = static_cast<std::int32_t>(row);
            found += std::ranges::any_of(graph_.before[row], [last](std::int32_t other) { return other > last; });
        }
        return 4 * found > looked_at;
    }

    // The task before each on its stream.
    std::vector<std::int32_t> held_by_stream() const {
        std::vector<std::int32_t> held(graph_.size(), NONE), last(static_cast<std::size_t>(graph_.streams), NONE);
        for (std::size_t at = 0; at < held.size(); ++at) {
            const std::int32_t stream = graph_.stream[at];
            if (stream < 0) continue;
            held[at] = std::exchange(last[static_cast<std::size_t>(stream)], static_cast<std::int32_t>(at));
        }
        return held;
    }

    // Place a task after all that it waits for, and so on; of a circle some task is placed too early, and never ends.
    void go_to(std::int32_t task, const std::vector<std::int32_t>& held, WaitingPairs& edges) {
        const auto unseen = [&](std::int32_t other) {
            return other != NONE && waiting_[static_cast<std::size_t>(other)] == UNSEEN;
        };
        const auto note = [&](std::int32_t other) {  // what place() will read is fetched meanwhile
            const auto at = static_cast<std::size_t>(other);
            __builtin_prefetch(&graph_.kind[at]);
            __builtin_prefetch(&graph_.amount[at]);
            __builtin_prefetch(&graph_.what[at]);
            __builtin_prefetch(&start_[at], 1);
            __builtin_prefetch(&finish_[at], 1);
            waiting_[at] = 0;
            road_.push_back({other, held[at], graph_.before.offsets[at]});
            __builtin_prefetch(graph_.before.values.data() + road_.back().entry);
        };
        if (unseen(task)) note(task);
        while (!road_.empty()) {
            Stop& here = road_.back();
            if (unseen(here.held)) {
                note(here.held);
                continue;
            }
            const std::int64_t end = graph_.before.offsets[static_cast<std::size_t>(here.task) + 1];
            while (here.entry < end && !unseen(graph_.before.values[static_cast<std::size_t>(here.entry)])) ++here.entry;
            if (here.entry < end) {
                note(graph_.before.values[static_cast<std::size_t>(here.entry)]);
                continue;
            }
            const Stop done = here;
            road_.pop_back();
            place(done.task, done.held, edges);
        }
    }

    // Settle a task if all that it waits for has been, `held` before it on its stream among them; else note what it waits
    // for.
    void place(std::int32_t task, std::int32_t held, WaitingPairs& edges) {
        const auto at = static_cast<std::size_t>(task);
        const bool counts = graph_.counts(at);
        Tick ready = 0;
        std::int32_t waiting = counts;
        auto wait_for = [&](std::int32_t other) {  // whether it has not been settled yet
            const Tick end = finish_[static_cast<std::size_t>(other)];
            if (end != NEVER) ready = std::max(ready, end);
            else ++waiting;
            return end == NEVER;
        };
        if (held != NONE && wait_for(held)) next_[static_cast<std::size_t>(held)] = task;
        if (!counts) {
            for (const std::int32_t other : graph_.before[at]) {
                if (wait_for(other)) edges.push_back({other, task});
            }
        } else {
            for (const std::int32_t other : graph_.before[at]) {
                const Tick end = finish_[static_cast<std::size_t>(other)];
                if (end != NEVER) schedule(end, What::count, task);
                else edges.push_back({other, ~task});
            }
        }
        start_[at] = ready;
        waiting_[at] = waiting;
        if (waiting == 0) begin(task);
        ahead_.clear();
    }

    // A task is ready and starts; its end may lie in the future, or not be known yet.
    void begin(std::int32_t task) {
        const auto at = static_cast<std::size_t>(task);
        const Tick start = start_[at];
        const std::int32_t what = graph_.what[at];
        switch (static_cast<Task>(graph_.kind[at])) {
            case Task::compute: return settle(task, later(start, graph_.amount[at]));
            case Task::join: return settle(task, start);
            case Task::put: schedule(start, What::put, what); return settle(task, start);
            case Task::take: return schedule(start, What::take, task);
            case Task::collective: return collectives_.gather(task, what, graph_.member[at], start);
            case Task::transfer:
                if (graph_.amount[at] > 0 && !roads_.hops(what).empty()) {
                    return schedule(later(start, until_join(what)), What::join, task);
                }
                return settle(task, later(start, roads_.latency[static_cast<std::size_t>(what)]));
        }
    }

    void settle(std::int32_t task, Tick end) {
        finish_[static_cast<std::size_t>(task)] = end;
        ahead_.push_back(task);
    }

    // Start what waited for the tasks that have been settled, and so on.
    void proceed() {
        while (!ahead_.empty()) {
            const std::int32_t task = ahead_.back();
            ahead_.pop_back();
            const Tick end = finish_[static_cast<std::size_t>(task)];
            for (const std::int32_t following : after_[task]) {
                if (following < 0) schedule(end, What::count, ~following);
                else ready(following, end);
            }
            if (const std::int32_t following = next_[static_cast<std::size_t>(task)]; following != NONE) {
                ready(following, end);
            }
        }
    }

    // One thing that a task waits for ends.
    void ready(std::int32_t task, Tick end) {
        const auto at = static_cast<std::size_t>(task);
        start_[at] = std::max(start_[at], end);
        if (--waiting_[at] == 0) begin(task);
    }

    // One of the predecessors of a task that needs some of them has finished.
    void count(std::int32_t task) {
        const auto at = static_cast<std::size_t>(task);
        if (--need_[at] != 0) return;
        start_[at] = std::max(start_[at], now());
        if (--waiting_[at] == 0) begin(task);
        proceed();
    }

    // -------------------------------------------------------------------------------------- tokens

    void put(std::int32_t counter) {
        ++tokens_[static_cast<std::size_t>(counter)];
        giving_.push_back(counter);
    }

    void take(std::int32_t task) {
        const std::int32_t counter = graph_.what[static_cast<std::size_t>(task)];
        takers_[static_cast<std::size_t>(counter)].emplace(now(), task);
        giving_.push_back(counter);
    }

    // One round: all counters give what they have to those that wait.  Whether anyone got a token.
    bool give() {
        if (giving_.empty()) return false;
        std::vector<std::int32_t> served;
        for (const std::int32_t counter : giving_) {
            auto& takers = takers_[static_cast<std::size_t>(counter)];
            auto& tokens = tokens_[static_cast<std::size_t>(counter)];
            for (; tokens > 0 && !takers.empty(); --tokens, takers.pop()) served.push_back(takers.top().second);
        }
        giving_.clear();
        for (const std::int32_t task : served) finish(task);
        return !served.empty();
    }

    // --------------------------------------------------------------------------------------- flows

    void join(std::int32_t task) {
        const auto at = static_cast<std::size_t>(task);
        add(graph_.what[at], graph_.amount[at] * WORK_PER_BYTE, {graph_.what[at], task, NONE, NONE});
    }

    void add(std::int32_t route, Work work, const Moving& moving) {
        for (const Hop& hop : roads_.hops(route)) {
            collectives_.enter(hop.link);
            ++flows_on_[static_cast<std::size_t>(hop.link)];
        }
        std::int32_t slot = static_cast<std::int32_t>(moving_.size());
        if (free_.empty()) {
            moving_.push_back(moving);
            due_.push_back(NEVER);
        } else {
            slot = free_.back();
            free_.pop_back();
            moving_[static_cast<std::size_t>(slot)] = moving;
        }
        joined_.push_back({slot, route, work});
    }

    // The last byte of a flow has been served, unless something changed after this was foreseen.
    void due(std::int32_t slot) {
        Tick& due = due_[static_cast<std::size_t>(slot)];
        if (due != now()) return;
        due = NEVER;
        served(slot);
    }

    // The same of flows whose ends the network model keeps to itself.
    void next() {
        if (network_.next() != now()) return;
        ended_.clear();
        network_.end(now(), ended_);
        for (const std::int32_t slot : ended_) served(slot);
    }

    void served(std::int32_t slot) {
        left_.push_back(slot);
        const Moving moving = moving_[static_cast<std::size_t>(slot)];
        for (const Hop& hop : roads_.hops(moving.route)) --flows_on_[static_cast<std::size_t>(hop.link)];
        if (moving.task != NONE) finish(moving.task);
        else collectives_.delivered(moving.instance, static_cast<std::size_t>(moving.edge));
    }

    // Ask the network model what this instant changes.
    void share() {
        endings_.clear();
        if (network_.numbers_matter) std::ranges::sort(joined_, {}, [this](const Joining& flow) { return place(flow); });
        network_.change(now(), joined_, left_, endings_);
        for (const auto& [slot, tick] : endings_) {
            due_[static_cast<std::size_t>(slot)] = tick;
            if (tick != NEVER && tick != BEYOND) schedule(tick, What::due, slot);
        }
        free_.insert(free_.end(), left_.begin(), left_.end());
        joined_.clear();
        left_.clear();
        asked_ = false;
        ++events_;
        if (const Tick next = network_.next(); next != NEVER && next != BEYOND && next != foreseen_) {
            schedule(foreseen_ = next, What::next, 0);
        }
        if (const Tick wake = network_.wake(); wake > now() && wake != BEYOND) schedule(wake, What::wake, 0);
    }

    // By which flows that join at one instant are numbered: what they are, not in which order they were found.
    std::tuple<std::int32_t, std::int32_t, std::int32_t> place(const Joining& flow) const {
        const Moving& moving = moving_[static_cast<std::size_t>(flow.slot)];
        return {moving.task, moving.instance, moving.edge};
    }

    const Graph& graph_;
    const Roads& roads_;
    Network& network_;
    std::span<Tick> start_, finish_;  // start_: also since when a task that waits is ready, as far as is known
    RadixHeap queue_;
    Collectives<Engine> collectives_;
    std::function<void()> poll_;

    std::vector<std::int32_t> waiting_, need_;  // of each task
    std::vector<std::int32_t> next_;            // that waits for each task on its stream
    Successors after_;                          // others that wait; those that count their predecessors as ~task
    std::vector<std::int32_t> ahead_;           // settled, not yet told to those that wait for them
    std::vector<Stop> road_;                    // of go_to()
    std::priority_queue<std::int32_t, std::vector<std::int32_t>, std::greater<>> begins_;  // collectives, now

    std::vector<Moving> moving_;  // by slot
    std::vector<Tick> due_;
    std::vector<std::int32_t> free_, ended_, left_, flows_on_;
    std::vector<Joining> joined_;
    std::vector<Ending> endings_;
    bool asked_ = false;
    Tick foreseen_ = NEVER;  // the last answer of network_.next()
    std::int64_t events_ = 0, instants_ = 0;

    std::vector<std::int64_t> tokens_;
    std::vector<std::priority_queue<Taker, std::vector<Taker>, std::greater<>>> takers_;
    std::vector<std::int32_t> giving_;
};

}  // namespace triosim
