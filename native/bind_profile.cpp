// Events of a profile for Python; see triosim/sources/readers/_events.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "profile_events.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace triosim;

namespace {

nb::list texts(const std::vector<std::string>& values) {
    nb::list found;
    for (const std::string& value : values) found.append(nb::bytes(value.data(), value.size()));
    return found;
}

}  // namespace

NB_MODULE(_profile, m) {
    m.doc() = "Where the events of a profile lie in its text; see triosim.sources.readers._events.";
    nb::class_<EventTable> table(m, "EventTable");
    const auto column = [&](const char* name, FramedColumn EventTable::*member) {
        table.def_prop_ro(name, [member](const EventTable& self) {
            const FramedColumn& kept = self.*member;
            std::vector<std::int64_t> values(kept.size());
            kept.copy(values.data());
            return array(std::move(values));
        });
    };
    column("offset", &EventTable::offset);
    column("length", &EventTable::length);
    column("start", &EventTable::start);
    column("name", &EventTable::name);
    column("duration", &EventTable::duration);
    column("correlation", &EventTable::correlation);
    column("device", &EventTable::device);
    column("stream", &EventTable::stream);
    column("shaped", &EventTable::shaped);
    column("function", &EventTable::function);
    nb::class_<ProfileEvents>(m, "ProfileEvents")
        .def(nb::init<bool>(), "functions"_a)
        .def(
            "feed",
            [](ProfileEvents& self, nb::bytes text, bool last) {
                const std::string_view view(text.c_str(), text.size());
                const nb::gil_scoped_release release;
                return self.feed(view, last);
            },
            "text"_a, "last"_a)
        .def_ro("odd", &ProfileEvents::odd)
        .def_ro("parts", &ProfileEvents::parts)
        .def_ro("calls", &ProfileEvents::calls)
        .def_ro("launches", &ProfileEvents::launches)
        .def_ro("works", &ProfileEvents::works)
        .def_ro("modules", &ProfileEvents::modules)
        .def("launch_of_works", [](const ProfileEvents& self) { return array(self.launch_of_works()); })
        .def_prop_ro("names", [](const ProfileEvents& self) { return texts(self.names); });
}
