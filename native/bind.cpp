// The engine for Python: columns come in as NumPy arrays and are not copied, ticks go out as NumPy arrays.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "carried.hpp"
#include "cells.hpp"
#include "check.hpp"
#include "circuit.hpp"
#include "columns.hpp"
#include "engine.hpp"
#include "equal_split.hpp"
#include "longest_way.hpp"
#include "maxmin.hpp"
#include "meeting.hpp"
#include "operator_chain.hpp"
#include "pass_columns.hpp"
#include "side_by_side.hpp"
#include "turns.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace triosim;

namespace {

// What Python hands in, as the engine reads it; it keeps the arrays.
class Reader {
public:
    Wires wires(nb::handle wires) {
        return {column<std::int64_t>(wires, "capacity"), ragged<std::int32_t>(wires, "routes"),
                column<std::int64_t>(wires, "latency"),
                columns_.flat_or_none<std::int32_t>(wires.attr("weights"), "weights")};
    }

    Graph graph(nb::handle graph) {
        Graph out;
        out.kind = column<std::int8_t>(graph, "kind");
        out.stream = column<std::int32_t>(graph, "stream");
        out.amount = column<std::int64_t>(graph, "amount");
        out.what = column<std::int32_t>(graph, "what");
        out.member = column<std::int32_t>(graph, "member");
        out.before = ragged<std::int32_t>(graph, "before");
        out.streams = number(graph, "streams");
        out.need = columns_.flat_or_none<std::int32_t>(graph.attr("need"), "need");
        out.instances = column<std::int32_t>(graph, "instances");
        out.tokens = column<std::int64_t>(graph, "tokens");
        std::unordered_map<PyObject*, std::size_t> known;  // patterns that several collectives share are one object
        for (nb::handle collective : graph.attr("collectives")) {
            patterns_.push_back(collective.attr("pattern"));
            const auto [place, fresh] = known.try_emplace(patterns_.back().ptr(), out.patterns.size());
            if (fresh) out.patterns.push_back(pattern(patterns_.back()));
            out.collectives.push_back(
                {place->second, column<std::int32_t>(collective, "route"), number(collective, "delay")});
        }
        return out;
    }

private:
    Pattern pattern(nb::handle pattern) {
        return {number(pattern, "members"),
                number(pattern, "places"),
                column<std::int32_t>(pattern, "source"),
                column<std::int32_t>(pattern, "target"),
                column<std::int64_t>(pattern, "bytes"),
                column<std::int32_t>(pattern, "count"),
                ragged<std::int32_t>(pattern, "needs"),
                column<std::int32_t>(pattern, "lag"),
                column<std::int64_t>(pattern, "pause")};
    }

    template <class T>
    Column<T> column(nb::handle object, const char* name) {
        return columns_.flat<T>(object.attr(name), name);
    }
    template <class T>
    Ragged<T> ragged(nb::handle object, const char* name) {
        const nb::object rows = object.attr(name);
        return {column<T>(rows, "values"), column<std::int64_t>(rows, "offsets")};
    }
    static std::int64_t number(nb::handle object, const char* name) { return Columns::number(object.attr(name), name); }

    Columns columns_;
    std::vector<nb::object> patterns_;
};

// A network model that is written in Python.
class PythonModel : public Network {
public:
    PythonModel(nb::object model, nb::handle wires, const Roads& roads) : model_(std::move(model)), roads_(roads) {
        alone_at_capacity = nb::cast<bool>(model_.attr("alone_at_capacity"));
        pays_latency = nb::cast<bool>(model_.attr("pays_latency"));
        numbers_matter = true;
        flow_ = nb::module_::import_("triosim.engine.solver").attr("Flow");
        model_.attr("start")(wires);
    }

    void change(Tick now, Column<Joining> joined, Column<std::int32_t> left, std::vector<Ending>& endings) override {
        nb::gil_scoped_acquire gil;
        nb::list gone, come;
        gone_.clear();
        for (const std::int32_t slot : left) gone_.push_back(number_[static_cast<std::size_t>(slot)]);
        std::ranges::sort(gone_);
        for (const std::int64_t number : gone_) {
            gone.append(number);
            slot_.erase(number);
        }
        for (const Joining& flow : joined) come.append(known(flow));
        for (nb::handle answer : model_.attr("change")(now, come, gone)) {
            const nb::tuple pair{nb::borrow(answer)};
            if (pair.size() != 2) throw nb::type_error("change() must give pairs of a flow and its end");
            endings.push_back(ending(whole(pair[0]), whole(pair[1]), now));
        }
        const nb::object wake = model_.attr("wake");
        wake_ = wake.is_none() ? NEVER : tick(whole(wake));
    }

    Tick wake() override { return wake_; }

private:
    nb::object known(const Joining& flow) {
        const auto slot = static_cast<std::size_t>(flow.slot);
        if (slot >= number_.size()) number_.resize(std::max(slot + 1, 2 * number_.size()));
        number_[slot] = next_;
        slot_[next_] = flow.slot;
        const nb::object work = (nb::int_(static_cast<std::int64_t>(flow.work >> 62)) << nb::int_(62)) +
                                nb::int_(static_cast<std::int64_t>(flow.work & ((Work{1} << 62) - 1)));
        nb::list links, weights;
        for (const Hop& hop : roads_.hops(flow.route)) {
            links.append(hop.link);
            weights.append(hop.weight);
        }
        return flow_(next_++, nb::tuple(links), nb::tuple(weights), work,
                     roads_.latency[static_cast<std::size_t>(flow.route)]);
    }

    // A whole number, whatever type of number it is.
    static nb::object whole(nb::handle value) {
        nb::object number = nb::steal(PyNumber_Index(value.ptr()));
        if (!number.is_valid()) throw nb::python_error();
        return number;
    }

    static Tick tick(nb::handle number) {
        int overflow = 0;
        const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
        return overflow > 0 ? BEYOND : overflow < 0 ? NEVER - 1 : value;
    }

    Ending ending(const nb::object& number, const nb::object& end, Tick now) const {
        const auto slot = slot_.find(tick(number));
        if (slot == slot_.end() || (tick(end) <= now && tick(end) != NEVER)) {
            const auto name = nb::cast<std::string>(model_.type().attr("__name__"));
            const std::string what = "network model " + name + " let flow " + nb::str(number).c_str() + " end at " +
                                     nb::str(end).c_str() + ", asked at " + std::to_string(now);
            PyErr_SetString(nb::module_::import_("triosim.core.errors").attr("InputError").ptr(), what.c_str());
            throw nb::python_error();
        }
        return {slot->second, tick(end)};
    }

    nb::object model_, flow_;
    const Roads& roads_;
    std::int64_t next_ = 0;
    std::vector<std::int64_t> number_;                     // by slot
    std::unordered_map<std::int64_t, std::int32_t> slot_;  // by number
    std::vector<std::int64_t> gone_;                       // numbers
    Tick wake_ = NEVER;
};

// The rules of triosim.engine.solvers.circuit.CircuitRules, or none; for so many links.
std::optional<CircuitRules> circuit_rules(nb::handle rules, std::size_t links) {
    if (rules.is_none()) return std::nullopt;
    Columns columns;
    const auto ends = columns.flat<std::int32_t>(rules.attr("ends"), "ends");
    const auto number = [&](const char* name) { return Columns::number(rules.attr(name), name); };
    const Tick setup = number("setup");
    const std::int64_t ports = number("ports"), buffer = number("receive_buffer");
    bool good = ends.size() == 2 * links && within(ends, 0, static_cast<std::int64_t>(ends.size())) && setup >= 0 &&
                ports >= 1 && buffer >= 0;
    for (std::size_t link = 0; good && link < links; ++link) good = ends[2 * link] != ends[2 * link + 1];
    if (!good) throw Refused("rules of circuits that make no sense");
    return CircuitRules(setup, ports, buffer, ends);
}

// rules: of the model "circuit".
std::unique_ptr<Network> built_in(const std::string& name, const Roads& roads, const std::optional<CircuitRules>& rules) {
    if (name == "max-min") return std::make_unique<MaxMin>(roads);
    if (name == "max-min by ripples") return std::make_unique<MaxMin>(roads, MaxMin::Way::ripples);
    if (name == "max-min by levels") return std::make_unique<MaxMin>(roads, MaxMin::Way::levels);
    if (name == "max-min by turns") return std::make_unique<MaxMin>(roads, MaxMin::Way::turns);
    if (name == "equal-split") return std::make_unique<EqualSplit>(roads);
    if (name == "circuit" && rules && roads.longest <= 1) return std::make_unique<Circuit>(roads, *rules);
    throw Refused("no network model of that name is built in");
}

std::unique_ptr<Network> network(nb::handle model, nb::handle wires, const Roads& roads,
                                 const std::optional<CircuitRules>& rules) {
    if (nb::isinstance<nb::str>(model)) return built_in(nb::cast<std::string>(model), roads, rules);
    return std::make_unique<PythonModel>(nb::borrow(model), wires, roads);
}

// Gives a long run up where Python wants to, at Ctrl-C for example.
void poll() {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void accept(const Graph& graph, const Wires& wires) {
    if (!check(graph, wires)) throw Refused("columns that make no sense: triosim.engine.check says which");
}

// See triosim/engine/native.py.
nb::object play(nb::object py_graph, nb::object py_wires, nb::object model, bool alone, bool formulas,
                nb::object py_rules) {
    Reader reader;
    const Graph graph = reader.graph(py_graph);
    const Wires wires = reader.wires(py_wires);
    const std::optional<CircuitRules> rules = circuit_rules(py_rules, wires.capacity.size());
    std::vector<Tick> start(graph.size()), finish(graph.size()), begin;
    std::vector<std::int64_t> link_bytes(wires.capacity.size(), 0);
    std::optional<Roads> roads;
    std::unique_ptr<Network> solver;  // outlives what runs without Python, for the model may be Python's
    Carried sums;
    std::int64_t events = 0;
    bool counted = false, ended = false;
    {
        const nb::gil_scoped_release release;
        accept(graph, wires);
        roads.emplace(wires);
    }
    solver = network(model, py_wires, *roads, rules);
    {
        const nb::gil_scoped_release release;
        std::vector<Tick> begins;  // of each collective that is run; what else the engine needed is given back here
        {
            Engine engine(graph, *roads, *solver, start, finish, alone, formulas, poll);
            counted = engine.play();
            events = engine.events();
            ended = std::ranges::find(finish, NEVER) == finish.end();
            if (!ended) engine.mark_stuck();
            for (std::size_t row = 0; row < graph.instances.size(); ++row) {
                begins.push_back(engine.begin_of(static_cast<std::int32_t>(row)));
            }
        }
        begin = start;
        for (std::size_t task = 0; task < graph.size(); ++task) {
            if (static_cast<Task>(graph.kind[task]) != Task::collective) continue;
            begin[task] = begins[static_cast<std::size_t>(graph.what[task])];
        }
        sums = carried(graph, wires, link_bytes);
    }
    return nb::make_tuple(array(std::move(start)), array(std::move(begin)), array(std::move(finish)),
                          array(std::move(link_bytes)), sums.flows, events, ended, counted, sums.over);
}

// See triosim/engine/monte_carlo.py.
std::int64_t scaled(std::int64_t amount, double factor) {
    if (factor == 1.0) return amount;
    const double product = std::floor(static_cast<double>(amount) * factor + 0.5);
    return product < static_cast<double>(BEYOND) ? static_cast<std::int64_t>(product) : BEYOND;
}

bool is_factor(double value) { return std::isfinite(value) && value >= 0; }

// Where one draw after another of a graph is played.
class Desk {
public:
    Desk(const Graph& graph, const Wires& wires, const std::optional<CircuitRules>& rules)
        : graph_(graph), wires_(wires), rules_(rules), amount_(graph.amount.begin(), graph.amount.end()),
          capacity_(wires.capacity.begin(), wires.capacity.end()), start_(graph.size()), finish_(graph.size()) {}

    // When the last task ends; BEYOND where that cannot be counted, NEVER where some task never does.
    Tick end(const std::string& model, Column<std::int32_t> kind, Column<double> factor, double link, bool interrupts) {
        for (std::size_t task = 0; task < amount_.size(); ++task) {
            if (const std::int32_t of = kind[task]; of >= 0) {
                amount_[task] = scaled(graph_.amount[task], factor[static_cast<std::size_t>(of)]);
            }
        }
        for (std::size_t at = 0; at < capacity_.size(); ++at) {
            const std::int64_t whole = wires_.capacity[at];
            capacity_[at] = whole == UNLIMITED ? whole : std::max<std::int64_t>(scaled(whole, link), 1);
        }
        Graph drawn = graph_;
        drawn.amount = amount_;
        Wires lines = wires_;
        lines.capacity = capacity_;
        const Roads roads(lines);
        const auto solver = built_in(model, roads, rules_);
        std::ranges::fill(start_, 0);
        Engine engine(drawn, roads, *solver, start_, finish_, true, true, interrupts ? poll : [] {});
        if (!engine.play()) return BEYOND;
        if (finish_.empty()) return 0;
        return std::ranges::find(finish_, NEVER) == finish_.end() ? std::ranges::max(finish_) : NEVER;
    }

private:
    const Graph& graph_;
    const Wires& wires_;
    const std::optional<CircuitRules>& rules_;
    std::vector<std::int64_t> amount_, capacity_;
    std::vector<Tick> start_, finish_;
};

nb::object play_many(nb::object py_graph, nb::object py_wires, const std::string& model, nb::object py_kind,
                     nb::object py_factors, nb::object py_links, nb::object py_rules) {
    Reader reader;
    Columns columns;
    const Graph graph = reader.graph(py_graph);
    const Wires wires = reader.wires(py_wires);
    const std::optional<CircuitRules> rules = circuit_rules(py_rules, wires.capacity.size());
    const auto kind = columns.flat<std::int32_t>(py_kind, "kind");
    const auto [factors, kinds] = columns.rows<double>(py_factors, "factors");
    const auto links = columns.flat<double>(py_links, "links");
    std::vector<std::int64_t> ends(links.size(), NEVER);
    {
        const nb::gil_scoped_release release;
        accept(graph, wires);
        if (kind.size() != graph.size() || factors.size() != links.size() * kinds) {
            throw Refused("factors must have the shape (draws, kinds), kind (tasks,) and links (draws,)");
        }
        for (std::size_t task = 0; task < kind.size(); ++task) {
            const bool computes = static_cast<Task>(graph.kind[task]) == Task::compute;
            if (kind[task] < -1 || kind[task] >= (computes ? static_cast<std::int64_t>(kinds) : 0)) {
                throw Refused("kind must name a column of factors, and -1 for what does not compute");
            }
        }
        if (!std::ranges::all_of(factors, is_factor) || !std::ranges::all_of(links, is_factor)) {
            throw Refused("factors and links must be finite and 0 or more");
        }
        const std::size_t threads = workers(ends.size());
        std::vector<Desk> desks(threads, Desk(graph, wires, rules));
        side_by_side(ends.size(), threads, [&, factors = factors, kinds = kinds](std::size_t draw, std::size_t worker) {
            const auto factor = factors.subspan(draw * kinds, kinds);
            ends[draw] = desks[worker].end(model, kind, factor, links[draw], worker == 0);
        });
    }
    return array(std::move(ends));
}

// See triosim/engine/longest_path.py.
nb::tuple replay(nb::object py_graph, nb::object py_kind, nb::object py_fixed, nb::object py_shared,
                 nb::object py_factors, nb::object py_links, nb::object py_at) {
    Reader reader;
    Columns columns;
    const Graph graph = reader.graph(py_graph);
    const auto kind = columns.flat<std::int32_t>(py_kind, "kind");
    const auto fixed = columns.flat<double>(py_fixed, "fixed"), shared = columns.flat<double>(py_shared, "shared");
    const auto [factors, kinds] = columns.rows<double>(py_factors, "factors");
    const auto links = columns.flat<double>(py_links, "links");
    const auto at = columns.flat<std::int64_t>(py_at, "at");
    const std::size_t draws = links.size();
    std::vector<double> ends(draws, 0), found(draws * at.size(), 0);
    bool complete = false;
    {
        const nb::gil_scoped_release release;
        const auto tasks = static_cast<std::int64_t>(graph.size());
        const auto runs = static_cast<std::int64_t>(graph.instances.size());
        bool good = graph.stream.size() == graph.size() && graph.what.size() == graph.size() &&
                    graph.before.size() == graph.size() && well_formed(graph.before) &&
                    within(graph.before.values, 0, tasks) && within(graph.stream, -1, graph.streams) &&
                    kind.size() == graph.size() && fixed.size() == graph.size() && shared.size() == graph.size() &&
                    factors.size() == draws * kinds && within(kind, -1, static_cast<std::int64_t>(kinds)) &&
                    within(at, 0, tasks) && tasks + runs < MOST && graph.streams < MOST;
        for (std::size_t task = 0; good && task < graph.size(); ++task) {
            if (static_cast<Task>(graph.kind[task]) == Task::collective) {
                good = graph.what[task] >= 0 && graph.what[task] < runs;
            }
        }
        if (!good) throw Refused("columns that make no sense together");
        const LongestWay all(graph, kind, fixed, shared, at);
        complete = all.complete();
        const std::size_t batches = complete ? (draws + LANES - 1) / LANES : 0, threads = workers(batches);
        struct Lines {
            std::vector<Lanes> factor, asked, finish;
        };
        std::vector<Lines> lines(threads, {std::vector<Lanes>(kinds), std::vector<Lanes>(at.size()), {}});
        side_by_side(batches, threads, [&, factors = factors, kinds = kinds](std::size_t batch, std::size_t worker) {
            auto& [factor, asked, finish] = lines[worker];
            Lanes link{}, end{};
            const std::size_t first = batch * LANES, count = std::min(LANES, draws - first);
            for (std::size_t lane = 0; lane < count; ++lane) {
                link[lane] = links[first + lane];
                for (std::size_t of = 0; of < kinds; ++of) factor[of][lane] = factors[(first + lane) * kinds + of];
            }
            all.play(factor, link, end, asked, finish);
            for (std::size_t lane = 0; lane < count; ++lane) {
                ends[first + lane] = end[lane];
                for (std::size_t i = 0; i < at.size(); ++i) found[(first + lane) * at.size() + i] = asked[i][lane];
            }
            if (worker == 0) poll();
        });
    }
    return nb::make_tuple(array(std::move(ends)), array(std::move(found)), complete);
}

Pieces pieces_of(Columns& columns, nb::tuple pieces) {
    return {columns.flat<std::int64_t>(pieces[0], "first"),   columns.flat<std::int8_t>(pieces[1], "kind"),
            columns.flat<std::int8_t>(pieces[2], "stream"),   columns.flat<std::int8_t>(pieces[3], "shown"),
            columns.flat<std::int64_t>(pieces[4], "ticks"),   columns.flat<std::int64_t>(pieces[5], "gap"),
            columns.flat<std::int64_t>(pieces[6], "offsets"), columns.flat<std::int32_t>(pieces[7], "before")};
}

nb::tuple steady_turn(nb::tuple pieces, std::size_t streams) {
    Columns columns;
    const Pieces what = pieces_of(columns, pieces);
    const std::vector<std::int64_t> zero{0}, none;
    const std::vector<std::int32_t> nothing;
    if (const char* wrong = why_wrong(what, {zero, nothing, nothing, nothing, zero, none, none}, streams, 0))
        throw Refused(wrong);
    std::vector<std::int64_t> start, finish;
    steady(what, streams, start, finish);
    return nb::make_tuple(array(std::move(start)), array(std::move(finish)));
}

// Turns of pieces; the columns are checked by what makes them, indices are checked here.
nb::tuple turns(nb::tuple pieces, nb::tuple played, std::size_t streams, std::size_t messages) {
    Columns columns;
    const Pieces what = pieces_of(columns, pieces);
    const Turns when{columns.flat<std::int64_t>(played[0], "first"), columns.flat<std::int32_t>(played[1], "cast"),
                     columns.flat<std::int32_t>(played[2], "number"), columns.flat<std::int32_t>(played[3], "piece"),
                     columns.flat<std::int64_t>(played[4], "port_first"), columns.flat<std::int64_t>(played[5], "ports"),
                     columns.flat<std::int64_t>(played[6], "longer")};
    if (const char* wrong = why_wrong(what, when, streams, messages)) throw Refused(wrong);
    Player player(what, when, streams, messages);
    bool ended = false;
    {
        nb::gil_scoped_release release;
        ended = player.play();
    }
    std::vector<std::int64_t> counts, start, end;
    for (Spans& spans : player.spans) {
        counts.push_back(static_cast<std::int64_t>(spans.start.size()));
        start.insert(start.end(), spans.start.begin(), spans.start.end());
        end.insert(end.end(), spans.end.begin(), spans.end.end());
    }
    return nb::make_tuple(array(std::move(player.free)), array(std::move(player.sent)),
                          array(std::move(player.arrived)), array(std::move(counts)), array(std::move(start)),
                          array(std::move(end)), ended);
}

// See triosim/engine/contended.py.
nb::tuple meeting(nb::tuple pieces, nb::tuple played, nb::tuple ways, std::size_t streams, std::size_t messages,
                  std::size_t labels) {
    Columns columns;
    const MeetingPieces what{
        columns.flat<std::int64_t>(pieces[0], "first"), columns.flat<std::int8_t>(pieces[1], "kind"),
        columns.flat<std::int8_t>(pieces[2], "stream"), columns.flat<std::int64_t>(pieces[3], "ticks"),
        columns.flat<double>(pieces[4], "stretch"),     columns.flat<std::int32_t>(pieces[5], "label"),
        columns.flat<std::int64_t>(pieces[6], "offsets"), columns.flat<std::int32_t>(pieces[7], "before"),
        columns.flat<std::int64_t>(pieces[8], "held"),    columns.flat<double>(pieces[9], "beside"),
        columns.flat<std::int64_t>(pieces[10], "gap"),    columns.flat<std::int64_t>(pieces[11], "exposed"),
        columns.flat<double>(pieces[12], "held_exposed")};
    const MeetingTurns when{
        columns.flat<std::int64_t>(played[0], "first"),      columns.flat<std::int32_t>(played[1], "cast"),
        columns.flat<std::int32_t>(played[2], "number"),     columns.flat<std::int64_t>(played[3], "release"),
        columns.flat<std::int32_t>(played[4], "piece"),      columns.flat<std::int64_t>(played[5], "port_first"),
        columns.flat<std::int64_t>(played[6], "message"),    columns.flat<std::int32_t>(played[7], "way"),
        columns.flat<std::int32_t>(played[8], "to"),           columns.flat<std::int64_t>(played[9], "lag")};
    const MeetingWays how{columns.flat<std::int64_t>(ways[0], "first"), columns.flat<std::int32_t>(ways[1], "resource"),
                          columns.flat<double>(ways[2], "part"), columns.flat<std::int32_t>(ways[3], "own"),
                          columns.flat<std::int64_t>(ways[4], "beside_first"), columns.flat<std::int32_t>(ways[5], "beside"),
                          nb::cast<std::size_t>(ways[6])};
    const auto host = columns.flat<std::int64_t>(ways[7], "host");
    if (const char* wrong = why_wrong(what, when, how, streams, messages, labels, host)) throw Refused(wrong);
    MeetingPlayer player(what, when, how, streams, messages, labels, host);
    bool ended = false;
    {
        nb::gil_scoped_release release;
        ended = player.play();
    }
    return nb::make_tuple(player.end(), array(std::move(player.work)), array(std::move(player.talk)),
                          array(std::move(player.hosted)), array(std::move(player.spent)), ended,
                          player.left_out);
}

nb::tuple chained(nb::tuple step, nb::handle rows, nb::handle calls, nb::handle under_way, bool hosted) {
    Columns columns;
    const Chain c = chain_of(columns, step);
    const auto which = columns.flat<std::int32_t>(rows, "rows");
    const auto called = columns.flat<std::int8_t>(calls, "calls");
    const auto until = columns.flat<std::int64_t>(under_way, "under_way");
    if (called.size() != c.call.size() || until.size() != c.call.size() ||
        !within(which, 0, static_cast<std::int64_t>(c.ticks.size())))
        throw Refused("columns of a step make no sense together");
    const auto latest = until.empty() ? 0.0 : static_cast<double>(std::ranges::max(until));
    if (!(lasts(c, which) + std::max(latest, 0.0) <= MOST_TICKS)) throw Refused(TOO_LONG);
    Chained out = chain(c, which, called, until, hosted);
    return nb::make_tuple(array(std::move(out.begin)), array(std::move(out.done)), array(std::move(out.issued)),
                          array(std::move(out.call_begin)), array(std::move(out.call_end)), out.host, out.end);
}

// See triosim/network/rank_classes.py.
nb::object refine(nb::object py_traffic) {
    Columns columns;
    const auto flat = [&](const char* name) { return columns.flat<std::int64_t>(py_traffic.attr(name), name); };
    const auto rows = [&]<class T>(const char* name, T) -> Ragged<T> {
        const nb::object table = py_traffic.attr(name);
        return {columns.flat<T>(table.attr("values"), name), columns.flat<std::int64_t>(table.attr("offsets"), name)};
    };
    const CellTraffic traffic{flat("endpoint_like"), flat("source"), flat("target"), flat("begun_by"), flat("way_like"),
                          flat("link_like"), flat("lag"), rows("needs", std::int64_t{}), rows("members", std::int64_t{}),
                          rows("routes", std::int32_t{})};
    Cells cells;
    {
        const nb::gil_scoped_release release;
        const auto endpoints = static_cast<std::int64_t>(traffic.endpoint_like.size());
        const auto ways = static_cast<std::int64_t>(traffic.ways());
        const auto groups = static_cast<std::int64_t>(traffic.members.size());
        const bool good = traffic.target.size() == traffic.ways() && traffic.way_like.size() == traffic.ways() &&
                          traffic.begun_by.size() == traffic.ways() && within(traffic.begun_by, -groups, endpoints) &&
                          traffic.lag.size() == traffic.needs.values.size() &&
                          traffic.needs.size() == traffic.ways() && traffic.routes.size() == traffic.ways() &&
                          well_formed(traffic.needs) && well_formed(traffic.routes) && well_formed(traffic.members) &&
                          within(traffic.source, 0, endpoints) && within(traffic.target, 0, endpoints) &&
                          within(traffic.needs.values, 0, ways) && within(traffic.members.values, 0, endpoints) &&
                          within(traffic.routes.values, 0, static_cast<std::int64_t>(traffic.link_like.size()));
        if (!good) throw Refused("columns of the traffic make no sense together");
        cells = Refinement(traffic).run();
    }
    return nb::make_tuple(array(std::move(cells.endpoint)), array(std::move(cells.way)), array(std::move(cells.link)),
                          array(std::move(cells.group)));
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The engine in C++; see triosim.engine.native.";
    nb::exception<Refused>(m, "Refused", PyExc_ValueError);
    m.def("play", &play, "graph"_a, "wires"_a, "model"_a, "alone"_a, "formulas"_a, "rules"_a = nb::none());
    m.def("play_many", &play_many, "graph"_a, "wires"_a, "model"_a, "kind"_a.none(), "factors"_a.none(),
          "links"_a.none(), "rules"_a = nb::none());
    m.def("replay", &replay, "graph"_a, "kind"_a.none(), "fixed"_a.none(), "shared"_a.none(), "factors"_a.none(),
          "links"_a.none(), "at"_a.none());
    m.def("steady", &steady_turn, "pieces"_a, "streams"_a);
    m.def("turns", &turns, "pieces"_a, "played"_a, "streams"_a, "messages"_a);
    m.def("meeting", &meeting, "pieces"_a, "played"_a, "ways"_a, "streams"_a, "messages"_a, "labels"_a);
    m.def("chained", &chained, "step"_a, "rows"_a.none(), "calls"_a.none(), "under_way"_a.none(), "hosted"_a);
    nb::class_<PassColumns>(m, "PassChain")
        .def(nb::init<nb::tuple, nb::tuple>(), "step"_a, "more"_a)
        .def("contracted", &PassColumns::contracted, "script"_a, "times"_a, "leads"_a);
    m.def("refine", &refine, "traffic"_a);
}
