/* Kernels that are run by every engine on every processor, with payloads of 16 bytes to 64 KiB.
 * Segment 3 may be written, 4 may be read; 5 may be written, and is shorter than a page. */
#include "samite_kernel.h"

#define WRITTEN 3
#define READ 4
#define SHORT 5

typedef uint32_t four __attribute__((vector_size(16)));
typedef float floats __attribute__((vector_size(16)));

SAMITE_KERNEL int32_t about(uint8_t *payload, uint32_t len) {
    uint64_t found[8] = {
        samite_me(), samite_units(), samite_origin(), samite_hops(), samite_len(WRITTEN),
        samite_len(SHORT), samite_base(READ) != 0, payload[0] + len,
    };
    samite_reply(found, sizeof found);
    return 0;
}

/* Words through the functions, aligned and atomic. */
SAMITE_KERNEL int32_t words(uint8_t *payload, uint32_t len) {
    uint64_t *given = (uint64_t *)payload;
    uint64_t found[6];
    found[0] = samite_load64(READ, 8 * (len % 1000));
    samite_store64(WRITTEN, 64, given[0]);
    found[1] = samite_add64(WRITTEN, 64, given[1]);
    found[2] = samite_cas64(WRITTEN, 64, given[0], 1);
    found[3] = samite_cas64(WRITTEN, 64, given[0] + given[1], 1);
    found[4] = samite_load64(WRITTEN, 64);
    samite_store64(SHORT, 8, found[0]);
    found[5] = samite_add64(SHORT, 8, 3);
    samite_reply(found, sizeof found);
    return 0;
}

/* Words of a mapped segment, by loads, stores and builtins. */
SAMITE_KERNEL int32_t mapped(uint8_t *payload, uint32_t len) {
    uint64_t *given = (uint64_t *)payload;
    uint64_t *to = samite_base(WRITTEN);
    const uint64_t *from = samite_base(READ);
    uint32_t *half = (uint32_t *)(to + 20);
    for (uint32_t at = 0; at < len / 8; at++)
        to[1000 + at] = from[2 * at] ^ given[at];
    __atomic_fetch_add(to + 8, given[0], __ATOMIC_ACQ_REL);
    __atomic_fetch_xor(half, 0x55aa55aau, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub((uint16_t *)(to + 30), 3, __ATOMIC_RELAXED);
    uint64_t expected = given[1];
    given[0] = __atomic_compare_exchange_n(to + 9, &expected, 5, 0, __ATOMIC_ACQ_REL,
                                           __ATOMIC_ACQUIRE);
    given[1] = expected + __atomic_exchange_n(to + 10, 7, __ATOMIC_ACQ_REL);
    samite_reply(payload, len);
    return 0;
}

/* 64 KiB at odd places, in and out. */
SAMITE_KERNEL int32_t copies(uint8_t *payload, uint32_t len) {
    static const uint8_t key[] = {3, 141, 59, 26, 53, 58, 97, 93};
    samite_copy_in(READ, 12345, payload + 1, len - 1);
    for (uint32_t at = 0; at < len; at++)
        payload[at] ^= key[at % sizeof key];
    samite_copy_out(WRITTEN, 777, payload, len);
    samite_copy_out(SHORT, 1, payload, 15);
    samite_copy_out(WRITTEN, 1, 0, 0);
    samite_reply(payload, len);
    return 0;
}

/* Sums, products and roots of floating-point numbers. The order is that of the source, and a
 * product is rounded before it is added. */
SAMITE_KERNEL int32_t numbers(uint8_t *payload, uint32_t len) {
    const uint64_t *from = samite_base(READ);
    double sum = 0, product = 1;
    float narrow = 0;
    uint64_t whole = 0;
    for (uint32_t at = 0; at < len; at++) {
        double number = (double)(int64_t)from[at] / 3.7e16 + payload[at];
        sum = sum + number * 1.1;
        product = product * 0.999 + number;
        narrow = narrow * 0.75f + (float)number;
        whole += (uint64_t)(number + 1024.0);
    }
    double found[5] = {sum, product, narrow, __builtin_elementwise_sqrt(sum * sum), (double)whole};
    samite_reply(found, sizeof found);
    return 0;
}

/* Vectors of 16 bytes. */
SAMITE_KERNEL int32_t vectors(uint8_t *payload, uint32_t len) {
    const four *given = (const four *)payload;
    const four *from = samite_base(READ);
    four mixed = {1, 2, 3, 4};
    floats sums = {0};
    for (uint32_t at = 0; at < len / 16; at++) {
        mixed = (mixed << 5 ^ mixed >> 27) + given[at] * 2654435761u;
        mixed = __builtin_shufflevector(mixed, from[at], 1, 6, 3, 4);
        mixed ^= (four)(mixed > given[at]) & from[at];
        sums = sums * 0.5f + __builtin_convertvector(mixed & 0xffff, floats);
    }
    struct {
        four mixed;
        floats sums;
    } found = {mixed, sums};
    samite_reply(&found, sizeof found);
    return 0;
}

/* Calls that go on and further ones, with new code. */
SAMITE_KERNEL int32_t effects(uint8_t *payload, uint32_t len) {
    for (uint32_t unit = 0; unit < samite_units(); unit++)
        samite_spawn(unit, unit + 1, payload + unit, 9);
    samite_inject(1, samite_define(payload, 5), 0, payload, 2);
    samite_forward((samite_me() + 1) % samite_units(), 4, payload, len);
    return 0;
}

SAMITE_KERNEL int32_t fails(uint8_t *payload, uint32_t len) {
    (void)payload;
    samite_fail(-(int32_t)len, "on purpose", 10);
    return 0;
}

/* Writes where it may only read, then goes on. */
SAMITE_KERNEL int32_t forbidden(uint8_t *payload, uint32_t len) {
    (void)payload;
    samite_store64(READ, len % 8 * 8, 1);
    samite_store64(WRITTEN, 0, 1); /* must not happen */
    return 0;
}
