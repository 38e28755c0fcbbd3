// Rows of pictures as bytes, for Python; see triosim/report/protobuf.py and triosim/report/lines.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "columns.hpp"
#include "filled_lines.hpp"
#include "message_rows.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace triosim;

namespace {

// A field is (kind, head, values or None, where or None, fields inside).
std::vector<MessageField> fields_of(nb::handle said, std::size_t messages, Columns& columns) {
    std::vector<MessageField> fields;
    for (nb::handle one : nb::cast<nb::tuple>(said)) {
        const auto parts = nb::cast<nb::tuple>(one);
        if (parts.size() != 5) throw Refused("a field has five parts");
        const auto kind = nb::cast<std::int64_t>(parts[0]);
        const auto head = nb::cast<nb::bytes>(parts[1]);
        if (kind < 0 || kind > 3) throw Refused("a field's kind is 0 to 3");
        MessageField field{static_cast<FieldKind>(kind), std::string(head.c_str(), head.size()),
                           columns.flat_or_none<std::int64_t>(parts[2], "values"),
                           columns.flat_or_none<std::uint8_t>(parts[3], "where"), {}, {}};
        const bool has_values = field.kind == FieldKind::number || field.kind == FieldKind::fixed;
        if ((has_values && field.values.size() != messages) || (!parts[3].is_none() && field.where.size() != messages))
            throw Refused("a column of fields is as long as there are messages");
        field.inner = fields_of(parts[4], messages, columns);
        fields.push_back(std::move(field));
    }
    return fields;
}

nb::bytes messages(nb::handle fields, std::size_t count) {
    Columns columns;
    const std::vector<MessageField> said = fields_of(fields, count, columns);
    const auto made = [&] {
        const nb::gil_scoped_release release;
        return MessageWriter(said, count);
    }();
    return nb::bytes(made.data(), made.size());
}

// The forms of lines that were made so far, by the numbers that tell kinds of lines apart.
class Forms {
public:
    nb::str lines(nb::handle make, nb::tuple keys, nb::tuple numbers, const std::string& between) {
        Columns kept;
        const auto by = spans(keys, kept), of = spans(numbers, kept);
        if (by.empty() && of.empty()) throw Refused("lines need a column");
        const std::size_t rows = by.empty() ? of[0].size() : by[0].size();
        for (const auto* columns : {&by, &of})
            for (const auto& column : *columns)
                if (column.size() != rows) throw Refused("columns of lines are of one length");
        if (forms_.empty()) kinds_ = KindTable(by.size());
        if (by.size() != kinds_.columns()) throw Refused("lines have as many keys as those before them");
        buffer_.clear();
        std::vector<std::int64_t> key(by.size());
        for (std::size_t row = 0; row < rows; ++row) {
            for (std::size_t i = 0; i < by.size(); ++i) key[i] = by[i][row];
            std::size_t kind = kinds_.find(key.data());
            if (kind == KindTable::NONE) {
                kind = forms_.size();
                forms_.push_back(form(make, key));
                kinds_.add(key.data());
            }
            if (forms_[kind].places() != of.size()) throw Refused("a line has a place for each number");
            buffer_.add(forms_[kind], of, row, between);
        }
        const std::string_view text = buffer_.text();
        return nb::str(text.data(), text.size());
    }

private:
    static std::vector<std::span<const std::int64_t>> spans(const nb::tuple& columns, Columns& kept) {
        std::vector<std::span<const std::int64_t>> found;
        for (nb::handle column : columns) found.push_back(kept.flat<std::int64_t>(column, "a column of lines"));
        return found;
    }

    static LineForm form(nb::handle make, const std::vector<std::int64_t>& key) {
        nb::list arguments;
        for (const std::int64_t value : key) arguments.append(value);
        const auto text = nb::cast<std::string>(make(*arguments));
        try {
            return LineForm(text);
        } catch (const std::invalid_argument& error) {
            throw Refused(error.what());
        }
    }

    KindTable kinds_{0};
    std::vector<LineForm> forms_;
    LineBuffer buffer_;
};

}  // namespace

NB_MODULE(_rows, m) {
    m.doc() = "Rows of pictures as bytes; see triosim.report.protobuf and triosim.report.lines.";
    m.def("messages", &messages, "fields"_a, "count"_a);
    nb::class_<Forms>(m, "Forms")
        .def(nb::init<>())
        .def("lines", &Forms::lines, "make"_a, "keys"_a, "numbers"_a, "between"_a);
}
