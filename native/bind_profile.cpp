// Events of a profile for Python; see triosim/sources/readers/_events.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

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
    nb::class_<ProfileEvents> events(m, "ProfileEvents");
    events.def(nb::init<bool>(), "functions"_a)
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
        .def_prop_ro("names", [](const ProfileEvents& self) { return texts(self.names); });
    const auto column = [&](const char* name, auto EventColumns::*member) {
        events.def_prop_ro(name, [member](nb::handle py_self) {  // lives as long as all of it; nothing may be fed then
            auto& values = nb::cast<ProfileEvents&>(py_self).columns.*member;
            using T = typename std::remove_reference_t<decltype(values)>::value_type;
            return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(values.data(), {values.size()}, py_self));
        });
    };
    column("offset", &EventColumns::offset);
    column("length", &EventColumns::length);
    column("start", &EventColumns::start);
    column("kind", &EventColumns::kind);
    column("name", &EventColumns::name);
    column("duration", &EventColumns::duration);
    column("correlation", &EventColumns::correlation);
    column("device", &EventColumns::device);
    column("stream", &EventColumns::stream);
    column("function", &EventColumns::function);
}
