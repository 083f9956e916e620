// Reads the scales and minimums of a packed weight as floats.
#pragma once
#include "tile.h"

namespace VARIANT::gemm {

// Scales of a panel's outputs, and minimums or null: unit i's are at i * PANEL.
struct Scales {
  const float *scale, *minimum;
};

// The records of a panel (see Scaling), and where to write.
struct Records {
  const uint8_t *from;
  float *scale, *minimum;

  // Writes those of a unit, W outputs at a time: of(left) returns what is for outputs left to left + W.
  template <class Of> void put_scales(int64_t unit, Of &&of) const {
    for (int64_t left = 0; left < PANEL; left += W) store(scale + unit * PANEL + left, of(left));
  }
  template <class Of> void put_minimums(int64_t unit, Of &&of) const {
    for (int64_t left = 0; left < PANEL; left += W) store(minimum + unit * PANEL + left, of(left));
  }
  // Field of a record: numbers from a byte of it on.
  template <class Number> const Number *at(int64_t byte, int64_t left) const { return (const Number *)(from + byte) + left; }
};

// Each kind of record: its bytes, the elements that it is for, whether it has minimums, and how the i-th unit of those that were
// asked for is read, whose scale is the number-th of the record.
struct OfBf16 {
  static constexpr int64_t BYTES = 2 * PANEL, ELEMENTS = 0;  // 0: a group
  static constexpr bool LOWERS = false;
  static void read(const Records &records, int64_t, int64_t i) {
    records.put_scales(i, [&](int64_t left) { return load_bf16(records.at<bf16>(0, left)); });
  }
};

struct OfZeros {
  static constexpr int64_t BYTES = 3 * PANEL, ELEMENTS = 0;
  static constexpr bool LOWERS = true;
  static void read(const Records &records, int64_t number, int64_t i) {
    OfBf16::read(records, number, i);
    records.put_minimums(i, [&](int64_t left) {
      return mul(load_bf16(records.at<bf16>(0, left)), load_bytes(records.at<uint8_t>(2 * PANEL, left)));
    });
  }
};

struct OfHalf {
  static constexpr int64_t BYTES = 2 * PANEL, ELEMENTS = 0;
  static constexpr bool LOWERS = false;
  static void read(const Records &records, int64_t, int64_t i) {
    records.put_scales(i, [&](int64_t left) { return load_half(records.at<uint16_t>(0, left)); });
  }
};

struct OfHalfZeros {
  static constexpr int64_t BYTES = 3 * PANEL, ELEMENTS = 0;
  static constexpr bool LOWERS = true;
  static void read(const Records &records, int64_t number, int64_t i) {
    OfHalf::read(records, number, i);
    records.put_minimums(i, [&](int64_t left) {
      return mul(load_half(records.at<uint16_t>(0, left)), load_bytes(records.at<uint8_t>(2 * PANEL, left)));
    });
  }
};

struct OfMinimums {
  static constexpr int64_t BYTES = 4 * PANEL, ELEMENTS = 0;
  static constexpr bool LOWERS = true;
  static void read(const Records &records, int64_t number, int64_t i) {
    OfHalf::read(records, number, i);
    records.put_minimums(i, [&](int64_t left) { return sub(zero(), load_half(records.at<uint16_t>(2 * PANEL, left))); });
  }
};

struct OfPairs {
  static constexpr int64_t BYTES = 20 * PANEL, ELEMENTS = 256;
  static constexpr bool LOWERS = true;
  static void read(const Records &records, int64_t number, int64_t i) {
    records.put_scales(i, [&](int64_t left) {
      return mul(load_half(records.at<uint16_t>(0, left)), load_bytes(records.at<uint8_t>((4 + number) * PANEL, left)));
    });
    records.put_minimums(i, [&](int64_t left) {
      return mul(load_half(records.at<uint16_t>(2 * PANEL, left)), load_bytes(records.at<uint8_t>((12 + number) * PANEL, left)));
    });
  }
};

struct OfSigned {
  static constexpr int64_t BYTES = 18 * PANEL, ELEMENTS = 256;
  static constexpr bool LOWERS = false;
  static void read(const Records &records, int64_t number, int64_t i) {
    records.put_scales(i, [&](int64_t left) {
      Float whole = sub(load_bytes(records.at<uint8_t>((2 + number) * PANEL, left)), set(128.0f));
      return mul(load_half(records.at<uint16_t>(0, left)), whole);
    });
  }
};

struct OfExponents {
  static constexpr int64_t BYTES = PANEL, ELEMENTS = 0;
  static constexpr bool LOWERS = false;
  static void read(const Records &records, int64_t, int64_t i) {  // in two steps, since the lowest power is no normal float
    records.put_scales(i, [&](int64_t left) {
      Float byte = load_bytes(records.at<uint8_t>(0, left));
      Float normal = scale_by_power(set(1.0f), max(sub(byte, set(128.0f)), set(-126.0f)));
      return mul(normal, scale_by_power(set(1.0f), min(sub(byte, set(2.0f)), zero())));
    });
  }
};

struct OfFractions {
  static constexpr int64_t BYTES = PANEL, ELEMENTS = 0;
  static constexpr bool LOWERS = false;
  static void read(const Records &records, int64_t, int64_t i) {
    records.put_scales(i, [&](int64_t left) {
      Float whole = load_bytes(records.at<uint8_t>(0, left));
      Float byte = choose(whole, set(127.5f), sub(whole, set(128.0f)), whole);
      Float exponent = round(sub(mul(byte, set(0.125f)), set(0.4375f)));
      Float fraction = sub(byte, mul(exponent, set(8.0f))), normal = add(fraction, set(8.0f));
      Float above = scale_by_power(normal, sub(exponent, set(11.0f))), below = mul(fraction, set(1.0f / 1024));
      Float value = choose(exponent, set(0.5f), above, below);
      return choose(whole, set(126.5f), choose(whole, set(127.5f), value, zero()), value);  // 127 is no number
    });
  }
};

// Reads `count` units of a panel, from the first-th on.
template <class Record>
Scales read(const Coding &coding, int64_t panel, int64_t k, int64_t unit, int64_t first, int64_t count, float *scale, float *minimum) {
  int64_t elements = Record::ELEMENTS ? Record::ELEMENTS : coding.group;
  const uint8_t *of_panel = (const uint8_t *)coding.scales + panel * (k / elements) * Record::BYTES;
  for (int64_t i = 0; i < count; i++) {
    int64_t element = (first + i) * unit;
    Records records{of_panel + element / elements * Record::BYTES, scale, minimum};
    Record::read(records, element % elements / coding.group, i);
  }
  return {scale, Record::LOWERS ? minimum : nullptr};
}

// Of any scaling but by_row. scale, minimum: room for floats [count][PANEL].
inline Scales read_scales(const Coding &coding, int64_t panel, int64_t k, int64_t unit, int64_t first, int64_t count, float *scale,
                          float *minimum) {
  constexpr decltype(&read<OfBf16>) BY_SCALING[] = {
      nullptr,          read<OfBf16>,  read<OfZeros>,  read<OfHalf>,      read<OfHalfZeros>,
      read<OfMinimums>, read<OfPairs>, read<OfSigned>, read<OfExponents>, read<OfFractions>};
  return BY_SCALING[(int)coding.scaling](coding, panel, k, unit, first, count, scale, minimum);
}

}  // namespace VARIANT::gemm
