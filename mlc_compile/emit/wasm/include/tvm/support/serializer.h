// How values lie in a stream, little-endian: numbers as they are in memory, and a count of 64
// bits before the items of whatever has a length. TVM's compiler writes so.
#pragma once

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

// This is WebAssembly, which is little-endian: nothing is ever swapped.
#define TVM_FFI_IO_NO_ENDIAN_SWAP 1

namespace tvm {
namespace support {

// What is copied byte by byte: numbers, enums of them, and DLPack's two small structs.
template <typename T>
inline constexpr bool is_flat = std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                                std::is_same_v<T, DLDataType> || std::is_same_v<T, DLDevice>;

template <typename T>
struct Serializer {
  static_assert(is_flat<T>, "no way to put this type into a stream");
  static constexpr bool enabled = true;
  static void Write(Stream* strm, const T& value) {
    strm->Write(static_cast<const void*>(&value), sizeof(T));
  }
  static bool Read(Stream* strm, T* value) {
    return strm->Read(static_cast<void*>(value), sizeof(T)) == sizeof(T);
  }
};

inline void WriteCount(Stream* strm, size_t count) {
  strm->Write(static_cast<uint64_t>(count));
}

inline bool ReadCount(Stream* strm, size_t* count) {
  uint64_t stored;
  if (!strm->Read(&stored)) return false;
  *count = static_cast<size_t>(stored);
  return *count == stored;
}

template <>
struct Serializer<std::string> {
  static constexpr bool enabled = true;
  static void Write(Stream* strm, const std::string& text) {
    WriteCount(strm, text.size());
    strm->Write(static_cast<const void*>(text.data()), text.size());
  }
  static bool Read(Stream* strm, std::string* text) {
    size_t size;
    if (!ReadCount(strm, &size)) return false;
    text->resize(size);
    return strm->Read(static_cast<void*>(text->data()), size) == size;
  }
};

template <>
struct Serializer<ffi::String> {
  static constexpr bool enabled = true;
  static void Write(Stream* strm, const ffi::String& text) {
    WriteCount(strm, text.size());
    strm->Write(static_cast<const void*>(text.data()), text.size());
  }
  static bool Read(Stream* strm, ffi::String* text) {
    std::string read;
    if (!strm->Read(&read)) return false;
    *text = ffi::String(std::move(read));
    return true;
  }
};

template <typename T>
struct Serializer<std::vector<T>> {
  static constexpr bool enabled = true;
  static void Write(Stream* strm, const std::vector<T>& items) {
    WriteCount(strm, items.size());
    for (const T& item : items) strm->Write(item);
  }
  static bool Read(Stream* strm, std::vector<T>* items) {
    size_t count;
    if (!ReadCount(strm, &count)) return false;
    items->clear();
    for (size_t i = 0; i < count; ++i) {
      T item{};
      if (!strm->Read(&item)) return false;
      items->push_back(std::move(item));
    }
    return true;
  }
};

template <typename T>
struct Serializer<ffi::Array<T>> {
  static constexpr bool enabled = true;
  static void Write(Stream* strm, const ffi::Array<T>& items) {
    WriteCount(strm, items.size());
    for (const T& item : items) strm->Write(item);
  }
  static bool Read(Stream* strm, ffi::Array<T>* items) {
    std::vector<T> read;
    if (!strm->Read(&read)) return false;
    *items = ffi::Array<T>(read.begin(), read.end());
    return true;
  }
};

template <typename K, typename V>
struct Serializer<std::pair<K, V>> {
  static constexpr bool enabled = true;
  static void Write(Stream* strm, const std::pair<K, V>& both) {
    strm->Write(both.first);
    strm->Write(both.second);
  }
  static bool Read(Stream* strm, std::pair<K, V>* both) {
    return strm->Read(&both->first) && strm->Read(&both->second);
  }
};

template <typename K, typename V>
struct Serializer<std::unordered_map<K, V>> {
  static constexpr bool enabled = true;
  static void Write(Stream* strm, const std::unordered_map<K, V>& entries) {
    strm->Write(std::vector<std::pair<K, V>>(entries.begin(), entries.end()));
  }
  static bool Read(Stream* strm, std::unordered_map<K, V>* entries) {
    std::vector<std::pair<K, V>> read;
    if (!strm->Read(&read)) return false;
    *entries = std::unordered_map<K, V>(read.begin(), read.end());
    return true;
  }
};

template <typename K, typename V>
struct Serializer<ffi::Map<K, V>> {
  static constexpr bool enabled = true;
  static void Write(Stream* strm, const ffi::Map<K, V>& entries) {
    WriteCount(strm, entries.size());
    for (const auto& [key, value] : entries) {
      strm->Write(key);
      strm->Write(value);
    }
  }
  static bool Read(Stream* strm, ffi::Map<K, V>* entries) {
    size_t count;
    if (!ReadCount(strm, &count)) return false;
    ffi::Map<K, V> read;
    for (size_t i = 0; i < count; ++i) {
      K key;
      V value;
      if (!strm->Read(&key) || !strm->Read(&value)) return false;
      read.Set(key, value);
    }
    *entries = std::move(read);
    return true;
  }
};

}  // namespace support
}  // namespace tvm
