// What Python hands in of contracted passes, and hands back; the columns are those of triosim/search/pass_script.py and
// block_rows.py.
#pragma once

#include <string>

#include "check.hpp"
#include "columns.hpp"
#include "contracted_pass.hpp"

namespace triosim {

// The columns of a step's chain, as triosim.engine.operator_chain.run_operator_chain takes them.
inline Chain chain_of(Columns& columns, const nb::tuple& step) {
    const Chain c{columns.flat<std::int64_t>(step[0], "ticks"), columns.flat<std::int64_t>(step[1], "gap"),
                  columns.flat<std::int64_t>(step[2], "issue"), columns.flat<std::int8_t>(step[3], "skips"),
                  columns.flat<std::int64_t>(step[4], "after"), columns.flat<std::int64_t>(step[6], "before"),
                  columns.flat<std::int64_t>(step[8], "need"), columns.flat<std::int32_t>(step[5], "after"),
                  columns.flat<std::int32_t>(step[7], "before"), columns.flat<std::int32_t>(step[9], "need"),
                  columns.flat<std::int64_t>(step[10], "call"), nb::cast<std::int64_t>(step[11]),
                  nb::cast<double>(step[12])};
    const auto made = static_cast<std::int64_t>(c.call.size());
    const auto lists = [&](std::span<const std::int64_t> first, std::span<const std::int32_t> values) {
        return first.size() == c.ticks.size() + 1 && well_formed(Ragged<std::int32_t>{values, first}) &&
               within(values, 0, made);
    };
    if (c.gap.size() != c.ticks.size() || c.issue.size() != c.ticks.size() || c.skips.size() != c.ticks.size() ||
        !lists(c.after_first, c.after) || !lists(c.before_first, c.before) || !lists(c.need_first, c.need) ||
        !(c.slowdown >= 1))
        throw Refused("columns of a step make no sense together");
    return c;
}

// The chain of a step for passes; it keeps its columns.
class PassColumns {
public:
    // `more` are the lags of collectives, which of them are called in every pass, ticks of a gap and of launching what
    // is sent, how many times longer collectives take beside those of another axis (waited for, and filling a link), and
    // whether operators wait for their host.
    PassColumns(nb::tuple step, nb::tuple more)
        : of_{chain_of(columns_, step),
              columns_.flat<std::int64_t>(more[0], "lags"),
              columns_.flat<std::int8_t>(more[1], "always"),
              nb::cast<std::int64_t>(more[2]),
              nb::cast<std::int64_t>(more[3]),
              nb::cast<double>(more[4]),
              nb::cast<double>(more[5]),
              nb::cast<bool>(more[6])} {
        const auto calls = of_.chain.call.size();
        if (of_.lags.size() != calls || of_.always.size() != calls || !(of_.met >= 0) || !(of_.filled >= 0))
            throw Refused("columns of a step make no sense together");
    }

    // The rows of a pass; `times` are ticks and number of each transfer, one after another.
    nb::tuple contracted(nb::tuple script, nb::handle times, bool leads) const {
        Columns columns;
        const auto table = [&](nb::handle rows, const char* name) -> Ragged<std::int32_t> {
            return {columns.flat<std::int32_t>(rows.attr("values"), name),
                    columns.flat<std::int64_t>(rows.attr("offsets"), name)};
        };
        const auto [steps, width] = columns.rows<std::int64_t>(script[1], "steps");
        if (width != STEP_COLUMNS) throw Refused("steps of a pass need a kind, two numbers, a stream and a port");
        const PassScript what{columns.flat<std::int32_t>(script[0], "rows"),
                              {reinterpret_cast<const PassStep*>(steps.data()), steps.size() / width},
                              table(script[2], "before"),
                              table(script[3], "late"),
                              columns.flat<std::int32_t>(script[4], "once"),
                              columns.flat<std::int64_t>(times, "times"),
                              nb::cast<bool>(script[5]),
                              nb::cast<bool>(script[6]),
                              leads};
        if (const char* why = why_wrong(of_, what)) throw Refused(why);
        auto* const run = new PassRun(of_, what);
        const nb::capsule owner(run, [](void* p) noexcept { delete static_cast<PassRun*>(p); });
        const auto flat = [&]<class T>(std::vector<T>& values) {
            return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(values.data(), {values.size()}, owner));
        };
        auto* const facts = reinterpret_cast<std::int64_t*>(run->facts.data());
        return nb::make_tuple(
            nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>>(facts, {run->facts.size(), PASS_COLUMNS}, owner)),
            flat(run->host_delay), flat(run->before), flat(run->ports), run->host, run->reduces, run->waiting_exposed);
    }

private:
    Columns columns_;
    PassChain of_;
};

}  // namespace triosim
