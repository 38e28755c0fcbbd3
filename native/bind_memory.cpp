// The caching allocator for Python; see triosim/memory/footprint.py.
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
            return CachingAllocator().play(sizes, events);
        },
        "sizes"_a.none(), "events"_a.none());
}
