// A column of whole numbers that lie near their neighbours: each takes as many bytes as those around it need.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace triosim {

// Numbers are kept in frames: the least of each, and by how much the others exceed it in 0, 1, 2, 4 or 8 bytes.  What
// has been written never moves, so that a column that grows is never there twice.
class FramedColumn {
public:
    FramedColumn() = default;
    FramedColumn(const FramedColumn&) = delete;
    FramedColumn& operator=(const FramedColumn&) = delete;

    std::size_t size() const { return frames_.size() * frame + filled_; }

    void push_back(std::int64_t value) {
        open_[filled_++] = value;
        if (filled_ == frame) close();
    }

    std::int64_t operator[](std::size_t at) const {
        if (at / frame == frames_.size()) return open_[at % frame];
        const Frame& f = frames_[at / frame];
        std::uint64_t above = 0;
        with_width(f.width, [&](auto excess) {
            std::memcpy(&excess, f.bytes + at % frame * sizeof excess, sizeof excess);
            above = excess;
        });
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(f.least) + above);
    }

    // Writes all numbers to `to`.
    void copy(std::int64_t* to) const {
        for (const Frame& f : frames_) {
            std::fill_n(to, frame, f.least);
            with_width(f.width, [&](auto excess) {
                for (std::size_t i = 0; i < frame; ++i) {
                    std::memcpy(&excess, f.bytes + i * sizeof excess, sizeof excess);
                    to[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(to[i]) + excess);
                }
            });
            to += frame;
        }
        std::copy_n(open_, filled_, to);
    }

private:
    static constexpr std::size_t frame = 128, page = 1 << 15;
    struct Frame {
        std::int64_t least;
        std::uint8_t* bytes;
        std::uint8_t width;
    };

    std::vector<Frame> frames_;
    std::vector<std::unique_ptr<std::uint8_t[]>> pages_;
    std::size_t used_ = page;  // of the last page
    std::int64_t open_[frame];
    std::size_t filled_ = 0;

    // Calls `found` with a number of so many bytes; not at all where all are equal.
    template <class Found>
    static void with_width(std::uint8_t width, Found&& found) {
        if (width == 1) found(std::uint8_t{});
        else if (width == 2) found(std::uint16_t{});
        else if (width == 4) found(std::uint32_t{});
        else if (width == 8) found(std::uint64_t{});
    }

    void close() {
        const auto [least, most] = std::minmax_element(open_, open_ + frame);
        const std::uint64_t base = static_cast<std::uint64_t>(*least), range = static_cast<std::uint64_t>(*most) - base;
        Frame f{*least, nullptr, 8};
        if (range == 0) f.width = 0;
        else if (range <= UINT8_MAX) f.width = 1;
        else if (range <= UINT16_MAX) f.width = 2;
        else if (range <= UINT32_MAX) f.width = 4;
        const std::size_t bytes = frame * f.width;
        if (used_ + bytes > page) {
            pages_.push_back(std::make_unique_for_overwrite<std::uint8_t[]>(page));
            used_ = 0;
        }
        f.bytes = bytes ? pages_.back().get() + used_ : nullptr;
        used_ += bytes;
        with_width(f.width, [&](auto excess) {
            for (std::size_t i = 0; i < frame; ++i) {
                excess = static_cast<decltype(excess)>(static_cast<std::uint64_t>(open_[i]) - base);
                std::memcpy(f.bytes + i * sizeof excess, &excess, sizeof excess);
            }
        });
        frames_.push_back(f);
        filled_ = 0;
    }
};

}  // namespace triosim
