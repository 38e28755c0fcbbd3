// The engine for Python: columns come in as NumPy arrays and are not copied, ticks go out as NumPy arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "carried.hpp"
#include "check.hpp"
#include "engine.hpp"
#include "equal_split.hpp"
#include "maxmin.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace triosim;

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
Column<T> column(const Array<T>& array) {
    return {array.data(), array.size()};
}

// A column of an object; it must outlive the view, which the objects that were handed in do.
template <class T>
Column<T> column(nb::handle object, const char* name) {
    return column(nb::cast<Array<T>>(object.attr(name), false));
}

template <class T>
Ragged<T> ragged(nb::handle rows) {
    return {column<T>(rows, "values"), column<std::int64_t>(rows, "offsets")};
}

template <class T>
Column<T> column_or_none(nb::handle object, const char* name) {
    return object.attr(name).is_none() ? Column<T>{} : column<T>(object, name);
}

Wires wires_of(nb::handle wires) {
    return {column<std::int64_t>(wires, "capacity"), ragged<std::int32_t>(wires.attr("routes")),
            column<std::int64_t>(wires, "latency"), column_or_none<std::int32_t>(wires, "weights")};
}

Pattern pattern_of(nb::handle pattern) {
    return {nb::cast<std::int64_t>(pattern.attr("members")),
            nb::cast<std::int64_t>(pattern.attr("places")),
            column<std::int32_t>(pattern, "source"),
            column<std::int32_t>(pattern, "target"),
            column<std::int64_t>(pattern, "bytes"),
            column<std::int32_t>(pattern, "count"),
            ragged<std::int32_t>(pattern.attr("needs")),
            column<std::int32_t>(pattern, "lag"),
            column<std::int64_t>(pattern, "pause")};
}

Graph graph_of(nb::handle graph) {
    Graph out;
    out.kind = column<std::int8_t>(graph, "kind");
    out.stream = column<std::int32_t>(graph, "stream");
    out.amount = column<std::int64_t>(graph, "amount");
    out.what = column<std::int32_t>(graph, "what");
    out.member = column<std::int32_t>(graph, "member");
    out.before = ragged<std::int32_t>(graph.attr("before"));
    out.streams = nb::cast<std::int64_t>(graph.attr("streams"));
    out.need = column_or_none<std::int32_t>(graph, "need");
    out.instances = column<std::int32_t>(graph, "instances");
    out.tokens = column<std::int64_t>(graph, "tokens");
    std::unordered_map<PyObject*, std::size_t> known;  // patterns that several collectives share are one object
    for (nb::handle collective : graph.attr("collectives")) {
        nb::object pattern = collective.attr("pattern");
        const auto [place, fresh] = known.try_emplace(pattern.ptr(), out.patterns.size());
        if (fresh) out.patterns.push_back(pattern_of(pattern));
        out.collectives.push_back({place->second, column<std::int32_t>(collective, "route"),
                                   nb::cast<std::int64_t>(collective.attr("delay"))});
    }
    return out;
}

// A network model that is written in Python.
class PythonModel : public Network {
public:
    PythonModel(nb::object model, nb::handle wires, const Roads& roads) : model_(std::move(model)), roads_(roads) {
        alone_at_capacity = nb::cast<bool>(model_.attr("alone_at_capacity"));
        pays_latency = nb::cast<bool>(model_.attr("pays_latency"));
        flow_ = nb::module_::import_("triosim.engine.solver").attr("Flow");
        model_.attr("start")(wires);
    }

    void change(Tick now, Column<Joining> joined, Column<std::int32_t> left, std::vector<Ending>& endings) override {
        nb::gil_scoped_acquire gil;
        nb::list gone, come;
        for (const std::int32_t slot : left) {
            const std::int64_t number = number_[static_cast<std::size_t>(slot)];
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
            PyErr_SetString(nb::module_::import_("triosim.errors").attr("InputError").ptr(), what.c_str());
            throw nb::python_error();
        }
        return {slot->second, tick(end)};
    }

    nb::object model_, flow_;
    const Roads& roads_;
    std::int64_t next_ = 0;
    std::vector<std::int64_t> number_;                     // by slot
    std::unordered_map<std::int64_t, std::int32_t> slot_;  // by number
    Tick wake_ = NEVER;
};

nb::object array(std::vector<std::int64_t>&& values) {
    auto* kept = new std::vector<std::int64_t>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

std::unique_ptr<Network> network(nb::handle model, nb::handle wires, const Roads& roads) {
    if (nb::isinstance<nb::str>(model)) {
        const auto name = nb::cast<std::string>(model);
        if (name == "max-min") return std::make_unique<MaxMin>(roads);
        if (name == "equal-split") return std::make_unique<EqualSplit>(roads);
        throw nb::value_error("no network model of that name is built in");
    }
    return std::make_unique<PythonModel>(nb::borrow(model), wires, roads);
}

// See triosim/engine/native.py.
nb::object play(nb::object py_graph, nb::object py_wires, nb::object model, bool alone, bool formulas) {
    const Graph graph = graph_of(py_graph);
    const Wires wires = wires_of(py_wires);
    std::vector<Tick> start(graph.size()), finish(graph.size()), begin;
    std::vector<std::int64_t> link_bytes(wires.capacity.size(), 0);
    std::int64_t flows = 0, events = 0;
    bool good = false, counted = false, ended = false;
    {
        std::optional<nb::gil_scoped_release> release(std::in_place);
        good = check(graph, wires);
        if (good) {
            const Roads roads(wires);
            release.reset();
            const auto solver = network(model, py_wires, roads);
            release.emplace();
            auto poll = [] {
                nb::gil_scoped_acquire gil;
                if (PyErr_CheckSignals() != 0) throw nb::python_error();
            };
            Engine engine(graph, roads, *solver, start, finish, alone, formulas, poll);
            counted = engine.play();
            events = engine.events();
            ended = std::ranges::find(finish, NEVER) == finish.end();
            if (!ended) engine.mark_stuck();
            begin = start;
            for (std::size_t task = 0; task < graph.size(); ++task) {
                if (static_cast<Task>(graph.kind[task]) == Task::collective) {
                    begin[task] = engine.begin_of(graph.what[task]);
                }
            }
            flows = carried(graph, wires, link_bytes);
            release.reset();
        }
    }
    if (!good) return nb::none();
    return nb::make_tuple(array(std::move(start)), array(std::move(begin)), array(std::move(finish)),
                          array(std::move(link_bytes)), flows, events, ended, counted);
}

std::int64_t scaled(std::int64_t amount, double factor) {
    if (factor == 1.0) return amount;
    return static_cast<std::int64_t>(std::floor(static_cast<double>(amount) * factor + 0.5));
}

// See triosim/engine/many.py.
nb::object play_many(nb::object py_graph, nb::object py_wires, const std::string& model, Array<std::int32_t> kind,
                     nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu> factors,
                     Array<double> links) {
    const Graph graph = graph_of(py_graph);
    const Wires wires = wires_of(py_wires);
    std::vector<std::int64_t> ends(factors.shape(0), NEVER);
    bool good = false;
    {
        const nb::gil_scoped_release release;
        good = check(graph, wires) && kind.size() == graph.size() && links.size() == factors.shape(0);
        std::vector<std::int64_t> amount(graph.amount.begin(), graph.amount.end());
        std::vector<std::int64_t> capacity(wires.capacity.begin(), wires.capacity.end());
        std::vector<Tick> start(graph.size()), finish(graph.size());
        auto poll = [] {
            const nb::gil_scoped_acquire gil;
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        };
        for (std::size_t draw = 0; good && draw < ends.size(); ++draw) {
            const double* factor = factors.data() + draw * factors.shape(1);
            for (std::size_t task = 0; task < amount.size(); ++task) {
                const std::int32_t of = kind.data()[task];
                if (of >= 0) amount[task] = scaled(graph.amount[task], factor[of]);
            }
            for (std::size_t link = 0; link < capacity.size(); ++link) {
                const std::int64_t whole = wires.capacity[link];
                capacity[link] = whole == UNLIMITED ? whole : std::max<std::int64_t>(scaled(whole, links.data()[draw]), 1);
            }
            Graph drawn = graph;
            drawn.amount = amount;
            Wires lines = wires;
            lines.capacity = capacity;
            const Roads roads(lines);
            std::unique_ptr<Network> solver;
            if (model == "equal-split") solver = std::make_unique<EqualSplit>(roads);
            else solver = std::make_unique<MaxMin>(roads);
            std::ranges::fill(start, 0);
            std::ranges::fill(finish, 0);
            Engine engine(drawn, roads, *solver, start, finish, true, true, poll);
            const bool counted = engine.play();
            const bool ended = std::ranges::find(finish, NEVER) == finish.end();
            if (counted && ended && !finish.empty()) ends[draw] = std::ranges::max(finish);
        }
    }
    if (!good) return nb::none();
    return array(std::move(ends));
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The engine in C++; see triosim.engine.native.";
    m.def("play", &play, "graph"_a, "wires"_a, "model"_a, "alone"_a, "formulas"_a);
    m.def("play_many", &play_many, "graph"_a, "wires"_a, "model"_a, "kind"_a, "factors"_a, "links"_a);
}
