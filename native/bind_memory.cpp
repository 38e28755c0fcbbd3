// The caching allocator for Python; see triosim/memory/footprint.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "caching_allocator.hpp"

namespace nb = nanobind;
using namespace nb::literals;

using Column = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

NB_MODULE(_allocator, m) {
    m.doc() = "The caching allocator in C++; see triosim.memory.footprint.";
    m.def(
        "reserved",
        [](Column sizes, Column events) {
            nb::gil_scoped_release release;
            return triosim::CachingAllocator().play({sizes.data(), sizes.size()}, {events.data(), events.size()});
        },
        "sizes"_a, "events"_a);
}
