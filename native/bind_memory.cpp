// The caching allocator for Python; see triosim/memory/footprint.py.
#include "allocation_passes.hpp"
#include "caching_allocator.hpp"
#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace triosim;

NB_MODULE(_allocator, m) {
    m.doc() = "The caching allocator in C++; see triosim.memory.footprint.";
    m.def(
        "reserved",
        [](nb::object py_sizes, nb::object py_events) {
            Columns columns;
            const auto sizes = columns.flat<std::int64_t>(py_sizes, "sizes");
            const auto events = columns.flat<std::int64_t>(py_events, "events");
            const nb::gil_scoped_release release;
            if (!possible(sizes, events)) {
                throw Refused(
                    "events must allocate blocks that are not held and free blocks that are; sizes must be 0 or more, and "
                    "fewer than 2**59 bytes in all");
            }
            return CachingAllocator::play(sizes, events);
        },
        "sizes"_a.none(), "events"_a.none());
    m.def(
        "reserved_in_passes",
        [](nb::object resident, nb::object ends, nb::object what, nb::object which, nb::object size, nb::object order,
           nb::object micro_batch) {
            Columns columns;
            const AllocationPasses passes{
                columns.flat<std::int64_t>(resident, "resident"), columns.flat<std::int64_t>(ends, "ends"),
                columns.flat<std::int8_t>(what, "what"), columns.flat<std::int32_t>(which, "which"),
                columns.flat<std::int64_t>(size, "size"), columns.flat<std::int32_t>(order, "order"),
                columns.flat<std::int32_t>(micro_batch, "micro_batch")};
            const nb::gil_scoped_release release;
            AllocationPlayer player(passes);
            if (!player.play()) {
                throw Refused(
                    "passes must allocate what is not held and free what is; sizes must be 0 or more, and fewer than "
                    "2**59 bytes in all");
            }
            return player.reserved();
        },
        "resident"_a.none(), "ends"_a.none(), "what"_a.none(), "which"_a.none(), "size"_a.none(), "order"_a.none(),
        "micro_batch"_a.none());
}
