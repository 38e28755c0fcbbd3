// Serving for Python; see triosim/serving/native.py.
#include <Python.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "columns.hpp"
#include "serving_asked_replica.hpp"
#include "serving_block_cache.hpp"
#include "serving_fleet.hpp"
#include "serving_own_cache.hpp"
#include "serving_radix_cache.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace triosim;
using namespace triosim::serving;

namespace {

std::int64_t whole(nb::handle value) {
    std::int64_t out = 0;
    if (!nb::try_cast(value, out)) throw GiveUp("a number beyond 64 bits");
    return out;
}

template <class T>
T field(nb::handle object, const char* name) {
    return nb::cast<T>(object.attr(name));
}

Counts counts_of(Columns& columns, nb::handle requests, const char* name) {
    const nb::object column = requests.attr(name);
    if (field<bool>(requests, "narrow")) return {{}, columns.flat<std::int32_t>(column, name)};
    return {columns.flat<std::int64_t>(column, name), {}};
}

Tables tables_of(Columns& columns, nb::handle from) {
    Tables out;
    const auto number = [&](const char* name) { return whole(from.attr(name)); };
    out.tokens = columns.flat<double>(from.attr("tokens"), "tokens");
    out.decodes = columns.rows<double>(from.attr("decodes"), "decodes").first;
    out.prefill = columns.rows<double>(from.attr("prefill"), "prefill").first;
    out.sequences = columns.flat<std::int64_t>(from.attr("sequences"), "sequences");
    out.keys = columns.flat<std::int64_t>(from.attr("keys"), "keys");
    out.chunks = columns.flat<std::int64_t>(from.attr("chunks"), "chunks");
    out.cached = columns.flat<std::int64_t>(from.attr("cached"), "cached");
    out.graph_sizes = columns.flat<std::int64_t>(from.attr("graph_sizes"), "graph_sizes");
    out.graph_tokens = number("graph_tokens");
    out.host = number("host");
    out.prompt_host = number("prompt_host");
    out.gap = number("gap");
    out.host_sequence = number("host_sequence");
    out.gap_sequence = number("gap_sequence");
    out.one_call = field<bool>(from, "one_call");
    const auto grid = [](const auto& one, const auto& other) { return one.size() * other.size(); };
    if (std::min({out.sequences.size(), out.keys.size(), out.chunks.size(), out.cached.size()}) < 2 ||
        out.decodes.size() != grid(out.sequences, out.keys) || out.prefill.size() != grid(out.chunks, out.cached))
        throw Refused("the tables of step times are no grids");
    return out;
}

Times times_of(Columns& columns, nb::object from, nb::object shape) {
    const nb::object tables = from.attr("tables");
    std::optional<Tables> read;
    if (!tables.is_none()) read = tables_of(columns, tables);
    const auto asked = [&](const char* name) -> std::function<std::int64_t(std::int64_t)> {
        return [call = nb::object(from.attr(name))](std::int64_t count) { return whole(call(count)); };
    };
    return {read,
            {[ticks = nb::object(from.attr("ticks")), after = nb::object(from.attr("after")),
              shape](const Shape& step, std::int64_t before) {
                 nb::list chunks;
                 for (const auto& [count, cached] : step.chunks) chunks.append(nb::make_tuple(count, cached));
                 const nb::object own = shape(step.tokens, nb::tuple(chunks), step.decodes, step.context, step.sampled);
                 return whole(before ? after(own, before) : ticks(own, 0));
             },
             asked("padded"), asked("ends"), asked("base")}};
}

// The cache that finds what is to be found with least to remember.
std::unique_ptr<Cache> cache_of(std::int64_t blocks, std::int64_t windowed, std::int64_t window, std::int64_t states,
                                bool reuses, bool radix, bool by_use, const BlockKeys& keys) {
    if (!reuses) return std::make_unique<Cache>(blocks, keys.size, windowed, window, states);
    if (states) throw Refused("a cache that finds prefixes holds no states");
    if (!by_use && keys.offsets.empty()) return std::make_unique<OwnCache>(blocks, keys.size, windowed, window, radix);
    if (!by_use && radix && !windowed) return std::make_unique<RadixCache>(blocks, keys.size, keys);
    return std::make_unique<BlockCache>(blocks, keys.size, windowed, window, radix, by_use, keys);
}

std::unique_ptr<Policy> policy_of(nb::handle from, Cache& cache) {
    Options out;
    out.max_running = whole(from.attr("max_running"));
    out.max_tokens = whole(from.attr("max_tokens"));
    out.longest = whole(from.attr("longest"));
    out.steady = field<bool>(from, "steady");
    out.watermark = field<double>(from, "watermark");
    out.share = field<double>(from, "share");
    out.no_evict = field<bool>(from, "no_evict");
    out.chunked = field<bool>(from, "chunked");
    out.padded = field<bool>(from, "padded");
    out.decode_steps = whole(from.attr("decode_steps"));
    out.ahead = field<bool>(from, "ahead");
    const auto name = field<std::string>(from, "engine");
    if (name == "vllm") return std::make_unique<Vllm>(out, cache);
    if (name == "sarathi") return std::make_unique<Sarathi>(out, cache);
    if (name == "orca") return std::make_unique<Orca>(out, cache);
    if (name == "sglang") return std::make_unique<SgLang>(out, cache);
    if (name == "trtllm") return std::make_unique<TrtLlm>(out, cache);
    if (name == "vllm_2023" || name == "vllm_v0") return std::make_unique<Vllm2023>(out, cache);
    if (name == "lightllm") return std::make_unique<LightLlm>(out, cache);
    if (name == "faster_transformer") return std::make_unique<FasterTransformer>(out, cache);
    throw Refused("no engine of that name: " + name);
}

Routing routing_of(Columns& columns, nb::handle from, std::size_t requests, std::size_t replicas) {
    Routing out;
    const auto name = field<std::string>(from, "kind");
    const auto choices = columns.flat_or_none<std::int64_t>(from.attr("choices"), "choices");
    out.choices = choices;
    out.slack = whole(from.attr("slack"));
    std::size_t expected = 0;
    if (name == "chosen") {
        out.kind = Routing::chosen;
        expected = requests;
    } else if (name == "pairs") {
        out.kind = Routing::pairs;
        expected = 2 * requests;
    } else if (name == "least-outstanding") {
        out.kind = Routing::least_outstanding;
    } else if (name == "prefix-aware") {
        out.kind = Routing::prefix_aware;
    } else if (name == "session") {
        out.kind = Routing::session;
        expected = requests;
    } else {
        throw Refused("no router of that name: " + name);
    }
    if (replicas > 1 && choices.size() != expected) throw Refused("the router's choices are not one for each request");
    if (replicas > 1 && (out.kind == Routing::chosen || out.kind == Routing::pairs))
        for (const std::int64_t one : choices)
            if (one < 0 || one >= static_cast<std::int64_t>(replicas)) throw Refused("a choice is no replica");
    return out;
}

// What a replica did, whoever has its policy.
template <class AnyReplica>
nb::dict counted(const AnyReplica& replica) {
    std::vector<std::int64_t> values, times;
    replica.gaps.counts().each([&](std::int64_t value, std::int64_t count) {
        values.push_back(value);
        times.push_back(count);
    });
    nb::dict out;
    const auto low = static_cast<std::uint64_t>(replica.gaps.total);
    const auto high = static_cast<std::uint64_t>(replica.gaps.total >> 64);
    out["steps"] = replica.steps;
    out["busy"] = replica.busy;
    out["tokens"] = replica.tokens;
    out["padding"] = replica.padding;
    out["outstanding"] = replica.outstanding;
    if constexpr (requires { replica.cache; }) {
        out["peak"] = replica.cache->peak;
        out["hit_tokens"] = replica.cache->hit_tokens;
        out["looked_up_tokens"] = replica.cache->looked_up_tokens;
    }
    out["gaps"] = nb::make_tuple(array(std::move(values)), array(std::move(times)), replica.gaps.exact,
                                 replica.gaps.count, high, low, replica.gaps.least, replica.gaps.most);
    return out;
}

// A column of many rows that takes memory only once one of them is not 0.
template <class Number>
struct Sparse {
    std::size_t size;
    std::vector<Number> values;

    void set(std::int64_t row, std::int64_t value) {
        if (values.empty() && value) values.resize(size);
        if (!values.empty()) values[row] = static_cast<Number>(value);
    }
    nb::object column() { return values.empty() ? nb::none() : array(std::move(values)); }
};

// A row for each request, at its place in the table: as few and as narrow columns as they can be.
class EveryRow final : public Outcome {
public:
    EveryRow(std::size_t count, bool follows)
        : scheduled_(count), first_(count), finished_(count), arrived_(follows ? count : 0), replica_{count, {}},
          restarts_{count, {}}, cached_{count, {}}, waited_{count, {}} {}

    void ended(const Request& request, std::int64_t replica, std::int64_t now) override {
        const std::int64_t row = request.row;
        scheduled_[row] = request.scheduled;
        first_[row] = request.first_token;
        finished_[row] = now;
        if (!arrived_.empty()) arrived_[row] = request.arrived;
        replica_.set(row, replica);
        restarts_.set(row, request.restarts);
        cached_.set(row, request.cached);
        waited_.set(row, request.waited);
    }
    nb::dict columns() {
        nb::dict rows;
        rows["scheduled"] = array(std::move(scheduled_));
        rows["first_token"] = array(std::move(first_));
        rows["finished"] = array(std::move(finished_));
        rows["arrived"] = arrived_.empty() ? nb::none() : array(std::move(arrived_));
        rows["replica"] = replica_.column();
        rows["restarts"] = restarts_.column();
        rows["cached"] = cached_.column();
        rows["waited"] = waited_.column();
        return rows;
    }

private:
    std::vector<std::int64_t> scheduled_, first_, finished_, arrived_;
    Sparse<std::int32_t> replica_, restarts_, cached_;
    Sparse<std::int64_t> waited_;
};

// Requests as they end, told to somebody who adds them up, a batch at a time.
class Told final : public Outcome {
public:
    Told(std::size_t count, nb::object listener)
        : listener_(std::move(listener)), replica_{count, {}}, cached_{count, {}} {}

    void ended(const Request& request, std::int64_t replica, std::int64_t now) override {
        const std::int64_t values[] = {request.row, replica,        request.arrived, request.scheduled, request.first_token,
                                       now,         request.waited, request.restarts};
        for (std::size_t column = 0; column < columns_.size(); ++column) columns_[column].push_back(values[column]);
        replica_.set(request.row, replica);
        cached_.set(request.row, request.cached);
        if (columns_[0].size() == most) tell();
    }
    nb::dict columns() {
        if (!columns_[0].empty()) tell();
        nb::dict rows;
        rows["replica"] = replica_.column();
        rows["cached"] = cached_.column();
        return rows;
    }

private:
    static constexpr std::size_t most = 1 << 16;

    void tell() {
        const auto column = [&](std::size_t place) { return array(std::exchange(columns_[place], {})); };
        listener_(column(0), column(1), column(2), column(3), column(4), column(5), column(6), column(7));
    }

    nb::object listener_;
    Sparse<std::int32_t> replica_, cached_;
    std::array<std::vector<std::int64_t>, 8> columns_;
};

nb::object play(nb::object requests, nb::list py_replicas, nb::object py_routing, nb::object shape, nb::object progress,
                nb::object made, nb::object listener) {
    Columns columns;
    const auto column = [&](const char* name) { return columns.flat<std::int64_t>(requests.attr(name), name); };
    const auto or_none = [&](const char* name) { return columns.flat_or_none<std::int64_t>(requests.attr(name), name); };
    const auto arrived = column("arrived");
    const Counts prompt = counts_of(columns, requests, "prompt"), output = counts_of(columns, requests, "output");
    const auto follows = or_none("follows");
    const std::size_t count = arrived.size();
    BlockKeys keys{or_none("hashes"), or_none("offsets"), whole(requests.attr("covers")), whole(requests.attr("size")),
                   field<bool>(requests, "outputs")};
    if (prompt.size() != count || output.size() != count || (!follows.empty() && follows.size() != count) ||
        (!keys.offsets.empty() && keys.offsets.size() != count + 1) || keys.covers < 1 || keys.size < 1)
        throw Refused("columns of requests are not equally long");
    constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
    for (std::size_t row = 0; row < count; ++row) {
        if (prompt[row] < 1 || output[row] < 1 || prompt[row] > most || output[row] > most || arrived[row] < 0)
            throw Refused("a request has no tokens, too many, or arrives before time 0");
        if (!follows.empty() && (follows[row] < -1 || follows[row] >= static_cast<std::int64_t>(row)))
            throw Refused("a request follows none before it");
        if (keys.offsets.empty()) continue;
        if (keys.offsets[row] < 0 || keys.offsets[row + 1] < keys.offsets[row] ||
            keys.offsets[row + 1] > static_cast<std::int64_t>(keys.values.size()))
            throw Refused("rows of hashes make no sense");
    }
    if (count >= std::size_t{1} << 30) throw GiveUp("too many requests");

    std::deque<Times> times;
    std::vector<PyObject*> known;  // replicas of a kind have one
    const auto times_at = [&](nb::handle from) -> Times& {
        const nb::object own = from.attr("times");
        const auto at = static_cast<std::size_t>(std::find(known.begin(), known.end(), own.ptr()) - known.begin());
        if (at == known.size()) {
            known.push_back(own.ptr());
            times.push_back(times_of(columns, own, shape));
        }
        return times[at];
    };
    const auto samples_of = [](nb::handle from) {
        return Samples(static_cast<std::size_t>(whole(from.attr("most_exact"))), field<double>(from, "ratio"));
    };
    if (!py_replicas.size()) throw Refused("there is no replica");
    const Routing routing = routing_of(columns, py_routing, count, py_replicas.size());
    const auto told = [&](std::int64_t number) {
        if (number >= 0 && !progress.is_none()) progress(number, count);
        if (PyErr_CheckSignals()) throw nb::python_error();
    };
    EveryRow every(listener.is_none() ? count : 0, !follows.empty());
    Told ended(count, listener);
    Outcome& outcome = listener.is_none() ? static_cast<Outcome&>(every) : ended;
    const auto played = [&](auto& replicas) {
        nb::object why = nb::none();
        const auto run = [&] { Fleet(replicas, routing, keys, outcome).play(arrived, prompt, output, follows, told); };
        if constexpr (requires { replicas[0].python; }) {  // nobody can play that again
            try {
                run();
            } catch (const GiveUp& stopped) {
                why = nb::str(stopped.what());
            }
        } else {
            run();
        }
        nb::list counts;
        for (const auto& replica : replicas) counts.append(counted(replica));
        return nb::make_tuple(listener.is_none() ? every.columns() : ended.columns(), counts, why);
    };
    if (!made.is_none()) {
        std::vector<AskedReplica> replicas;
        replicas.reserve(py_replicas.size());
        for (nb::handle from : py_replicas)
            replicas.emplace_back(from.attr("replica"), made, times_at(from), samples_of(from), field<bool>(from, "steady"),
                                  field<bool>(from, "ahead"));
        return played(replicas);
    }
    std::vector<Replica> replicas;
    for (nb::handle from : py_replicas) {
        const std::int64_t blocks = whole(from.attr("blocks"));
        if (blocks < 1) throw Refused("a cache has no block");
        const std::int64_t windowed = whole(from.attr("windowed")), window = whole(from.attr("window"));
        if (windowed < 0 || windowed > 1 << 20 || window < 0) throw Refused("a cache has no such groups of layers");
        const std::int64_t states = whole(from.attr("states"));
        if (states < 0 || states > 1 << 20) throw Refused("a request holds no such number of states");
        auto cache = cache_of(blocks, windowed, window, states, field<bool>(from, "reuses"), field<bool>(from, "radix"),
                              field<bool>(from, "by_use"), keys);
        auto policy = policy_of(from, *cache);
        replicas.emplace_back(std::move(cache), std::move(policy), times_at(from), samples_of(from));
    }
    return played(replicas);
}

}  // namespace

NB_MODULE(_serving, m) {
    m.doc() = "Serving in C++; see triosim.serving.native.";
    m.def(
        "play",
        [](nb::object requests, nb::list replicas, nb::object routing, nb::object shape, nb::object progress, nb::object made,
           nb::object listener) -> nb::object {
            try {
                return play(requests, replicas, routing, shape, progress, made, listener);
            } catch (const GiveUp&) {
                return nb::none();
            }
        },
        "requests"_a, "replicas"_a, "routing"_a, "shape"_a, "progress"_a.none(),
        "made"_a.none(), "listener"_a.none());
}
