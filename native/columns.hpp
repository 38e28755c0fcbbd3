// Columns that cross between Python and C++: NumPy arrays that are not copied, refused where they are not what they must be.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace triosim {

namespace nb = nanobind;

// Columns that make no sense; a ValueError in Python.  (Only one module may give it a name there: what raises it in
// Python is known to all modules together.)
struct Refused : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// Views of columns; it keeps the arrays, so that it must live as long as the views.
class Columns {
public:
    template <class T>
    std::span<const T> flat(nb::handle value, const std::string& name) {
        return {data<T, nb::ndim<1>>(value, name), kept_.back().size()};
    }
    template <class T>
    std::span<const T> flat_or_none(nb::handle value, const std::string& name) {
        return value.is_none() ? std::span<const T>{} : flat<T>(value, name);
    }
    // Rows one after another, and their length.
    template <class T>
    std::pair<std::span<const T>, std::size_t> rows(nb::handle value, const std::string& name) {
        const T* first = data<T, nb::ndim<2>>(value, name);
        return {{first, kept_.back().size()}, kept_.back().shape(1)};
    }

    static std::int64_t number(nb::handle value, const std::string& name) {
        std::int64_t number = 0;
        if (!nb::try_cast(value, number)) throw Refused(name + " must be a whole number that fits int64");
        return number;
    }

private:
    template <class T, class Dimensions>
    const T* data(nb::handle value, const std::string& name) {
        nb::ndarray<const T, Dimensions, nb::c_contig, nb::device::cpu> array;
        const bool good = nb::try_cast(value, array, false);
        if (!good || reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) != 0) {
            constexpr int dimensions = std::is_same_v<Dimensions, nb::ndim<1>> ? 1 : 2;
            throw Refused(name + " must be an aligned, contiguous array of " + std::to_string(dimensions) +
                          (dimensions == 1 ? " dimension of " : " dimensions of ") +
                          (std::is_floating_point_v<T> ? "float" : "int") + std::to_string(8 * sizeof(T)));
        }
        kept_.push_back(nb::ndarray<nb::ro>(array));
        return array.data();
    }

    std::vector<nb::ndarray<nb::ro>> kept_;
};

// A column of C++ as an array of NumPy's, which owns it from then on.
template <class T>
nb::object array(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

}  // namespace triosim
