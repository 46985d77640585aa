/* Kernels in C, for every engine of Samite: one source for WebAssembly, LLVM bitcode and shared
 * objects of machine code.
 *
 * An entry has the type `int32_t entry(uint8_t *payload, uint32_t len)` and is marked with
 * SAMITE_KERNEL. It returns 0 for success; another value ends the call with that error code. The
 * payload is a private copy, aligned to 64 bytes; the kernel may change it, up to len.
 *
 *     #include "samite_kernel.h"
 *     SAMITE_KERNEL int32_t echo(uint8_t *payload, uint32_t len) {
 *         samite_reply(payload, len);
 *         return 0;
 *     }
 *
 * To compile it (for aarch64, bitcode and shared objects are compiled with
 * --target=aarch64-linux-gnu -mno-outline-atomics, so that atomic builtins call no library):
 *
 *   WebAssembly, needs lld:
 *     clang-22 --target=wasm32 -O3 -mbulk-memory -msimd128 -ffreestanding \
 *       -fno-zero-initialized-in-bss -nostdlib \
 *       -Wl,--no-entry,--export-dynamic,-z,stack-size=1048576 \
 *       -Xlinker --import-memory=samite,memory \
 *       kernel.c -o kernel.wasm
 *   LLVM bitcode:
 *     clang-22 -O3 -ffreestanding -fno-vectorize -fno-slp-vectorize -emit-llvm \
 *       -c kernel.c -o kernel.bc
 *   a shared object:
 *     clang-22 -O3 -ffreestanding -fPIC -shared -nostdlib -fvisibility=hidden -DSAMITE_ELF \
 *       kernel.c -o kernel.so
 *
 * Only WebAssembly is sandboxed. Bitcode and shared objects run with all rights of the process and
 * without a limit of time: a wrong pointer or an endless loop there harms the whole process.
 *
 * A function that is called wrongly (a segment that is not granted, a range outside of it) ends
 * the call with an error. WebAssembly stops at once. Machine code goes on until it returns: the
 * function has done nothing, returns 0, and so do all functions after it. A kernel for all engines
 * therefore has no loop that ends only when a function returns something else than 0.
 *
 * The functions work during a call, on the thread that runs it. In a shared object, code that runs
 * when the object is loaded must not call them: they are not there yet.
 *
 * Variables outside of functions: in WebAssembly each instance has its own, in machine code all
 * threads of the process share them. A kernel for all engines has only constants there. */
#ifndef SAMITE_KERNEL_H
#define SAMITE_KERNEL_H

#include <stddef.h>
#include <stdint.h>

/* There is no <string.h>. In WebAssembly these do not work on granted segments. */
#ifndef __cplusplus
#if defined(__wasm__)
static inline __attribute__((unused)) void *memcpy(void *to, const void *from, size_t len) {
    return __builtin_memcpy(to, from, len);
}
static inline __attribute__((unused)) void *memmove(void *to, const void *from, size_t len) {
    return __builtin_memmove(to, from, len);
}
static inline __attribute__((unused)) void *memset(void *to, int byte, size_t len) {
    return __builtin_memset(to, byte, len);
}
#else
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
#endif
#endif

/* A product is rounded before it is added, on every processor: aarch64, and x86-64 with FMA, would
 * do both at once and so get other results than WebAssembly. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#ifdef __cplusplus
#define SAMITE_C extern "C"
#else
#define SAMITE_C
#endif

/* Marks an entry. */
#define SAMITE_KERNEL SAMITE_C __attribute__((used, visibility("default"))) SAMITE_EXPORT

/* Longest payload of a call, a forwarded call or a reply, and longest copy, in bytes. */
#define SAMITE_PAYLOAD_MAX 65536u

/* The functions: result, name, parameters, names of the arguments. The order is that of the table
 * of shared objects; new functions are added at the end. */
#define SAMITE_FUNCTIONS(F)                                                                      \
    F(uint32_t, me, (void), ())                                                                  \
    F(uint32_t, units, (void), ())                                                               \
    F(uint32_t, origin, (void), ())                                                              \
    F(uint32_t, hops, (void), ())                                                                \
    F(void *, base, (uint32_t grant), (grant))                                                   \
    F(uint64_t, len, (uint32_t grant), (grant))                                                  \
    F(uint64_t, load64, (uint32_t grant, uint64_t offset), (grant, offset))                      \
    F(void, store64, (uint32_t grant, uint64_t offset, uint64_t value), (grant, offset, value))  \
    F(uint64_t, add64, (uint32_t grant, uint64_t offset, uint64_t value), (grant, offset, value)) \
    F(uint64_t, cas64, (uint32_t grant, uint64_t offset, uint64_t expected, uint64_t replacement), \
      (grant, offset, expected, replacement))                                                    \
    F(void, copy_in, (uint32_t grant, uint64_t offset, void *to, uint32_t len),                  \
      (grant, offset, to, len))                                                                  \
    F(void, copy_out, (uint32_t grant, uint64_t offset, const void *from, uint32_t len),         \
      (grant, offset, from, len))                                                                \
    F(void, forward, (uint32_t unit, uint32_t entry, const void *from, uint32_t len),            \
      (unit, entry, from, len))                                                                  \
    F(void, spawn, (uint32_t unit, uint32_t entry, const void *from, uint32_t len),              \
      (unit, entry, from, len))                                                                  \
    F(void, reply, (const void *from, uint32_t len), (from, len))                                \
    F(void, fail, (int32_t code, const void *from, uint32_t len), (code, from, len))             \
    F(uint32_t, define, (const void *from, uint32_t len), (from, len))                           \
    F(void, inject,                                                                              \
      (uint32_t unit, uint32_t code, uint32_t entry, const void *from, uint32_t len),            \
      (unit, code, entry, from, len))

#if defined(__wasm__)

#define SAMITE_EXPORT
#define SAMITE_DECLARE(result, name, parameters, arguments)                                      \
    SAMITE_C __attribute__((import_module("samite"), import_name(#name)))                        \
    result samite_##name parameters;

#elif defined(SAMITE_ELF)

#define SAMITE_EXPORT
/* The functions, as the engine passes them to samite_bind after it has loaded the object. */
#define SAMITE_DECLARE(result, name, parameters, arguments) result(*name) parameters;
struct samite_table {
    uint64_t bytes; /* of the table: an engine that has more functions passes a longer one */
    SAMITE_FUNCTIONS(SAMITE_DECLARE)
};
#undef SAMITE_DECLARE

/* Weak: an object that consists of several files has one of each. */
SAMITE_C __attribute__((weak, visibility("hidden"))) struct samite_table samite_functions;

SAMITE_C __attribute__((weak, used, visibility("default"))) int32_t
samite_bind(const struct samite_table *table) {
    if (table->bytes < sizeof samite_functions)
        return -1;
    samite_functions = *table;
    return 0;
}

#define SAMITE_DECLARE(result, name, parameters, arguments)                                      \
    static inline __attribute__((unused)) result samite_##name parameters {                      \
        return samite_functions.name arguments;                                                  \
    }

#else /* bitcode */

#define SAMITE_EXPORT
#define SAMITE_DECLARE(result, name, parameters, arguments)                                      \
    SAMITE_C result samite_##name parameters;

#endif

/* samite_me()      the unit on which the kernel runs
 * samite_units()   the number of units
 * samite_origin()  the unit that called first, and gets the reply
 * samite_hops()    how often the call may still move to another unit
 *
 * samite_base(grant)  address of a granted segment; NULL if it can be reached only by the functions
 *                     below: check for that. In WebAssembly only segments of whole pages have an
 *                     address: those whose length is a multiple of 2 MiB do. Words that others
 *                     change meanwhile are accessed by atomic builtins, or by functions.
 * samite_len(grant)   its length in bytes
 * samite_load64(grant, offset), samite_store64(grant, offset, value)
 *                     an aligned word of 8 bytes
 * samite_add64(grant, offset, value), samite_cas64(grant, offset, expected, replacement)
 *                     atomics; return what was there
 * samite_copy_in(grant, offset, to, len), samite_copy_out(grant, offset, from, len)
 *                     bytes of a segment to memory of the kernel, and back
 *
 * samite_forward(unit, entry, from, len)  goes on at another unit, at an entry of the same code,
 *                                         when this call has returned; entries count from 0
 * samite_spawn(unit, entry, from, len)    starts a further call, whose result nobody gets
 * samite_reply(from, len)                 replies to the origin
 * samite_fail(code, from, len)            ends the call with an error code and a text. Machine code
 *                                         goes on: return after it
 * samite_define(from, len)                makes new code of a WebAssembly module, returns its
 *                                         number
 * samite_inject(unit, code, entry, from, len)  starts a call of code that this call has defined */
#pragma GCC diagnostic push
/* In a shared object, functions without a result return that of another one. */
#pragma GCC diagnostic ignored "-Wpedantic"
SAMITE_FUNCTIONS(SAMITE_DECLARE)
#pragma GCC diagnostic pop

#undef SAMITE_DECLARE
#undef SAMITE_FUNCTIONS

#endif
