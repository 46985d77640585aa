/* Kernels of the tests, compiled for each engine. Payloads are words of 8 bytes. */
#include "samite_kernel.h"

#define GRANT 3

SAMITE_KERNEL int32_t echo(uint8_t *payload, uint32_t len) {
    samite_reply(payload, len);
    return 0;
}

/* Returns nothing at once. */
SAMITE_KERNEL int32_t nothing(uint8_t *payload, uint32_t len) {
    (void)payload;
    (void)len;
    return 0;
}

SAMITE_KERNEL int32_t where(uint8_t *payload, uint32_t len) {
    uint64_t *words = (uint64_t *)payload;
    (void)len;
    words[0] = samite_me();
    words[1] = samite_units();
    words[2] = samite_origin();
    words[3] = samite_hops();
    words[4] = samite_len(GRANT);
    words[5] = samite_base(GRANT) != 0;
    words[6] = samite_base(2) != 0;
    samite_reply(payload, 56);
    return 0;
}

/* Follows words[1] links from offset words[0] on: each word is the offset of the next one. */
SAMITE_KERNEL int32_t chase(uint8_t *payload, uint32_t len) {
    uint64_t *words = (uint64_t *)payload;
    (void)len;
    for (uint64_t steps = words[1]; steps; steps--)
        words[0] = samite_load64(GRANT, words[0]);
    samite_reply(payload, 8);
    return 0;
}

SAMITE_KERNEL int32_t chase_mapped(uint8_t *payload, uint32_t len) {
    uint64_t *words = (uint64_t *)payload;
    const uint8_t *base = samite_base(GRANT);
    (void)len;
    uint64_t at = words[0];
    for (uint64_t steps = words[1]; steps; steps--)
        at = __atomic_load_n((const uint64_t *)(base + at), __ATOMIC_ACQUIRE);
    words[0] = at;
    samite_reply(payload, 8);
    return 0;
}

/* Counts and adds the numbers above the first one of the payload. */
SAMITE_KERNEL int32_t filter(uint8_t *payload, uint32_t len) {
    const int32_t *numbers = samite_base(GRANT);
    uint32_t count = samite_len(GRANT) / 4;
    int32_t above = *(int32_t *)payload;
    int32_t sum = 0, found = 0;
    (void)len;
    for (uint32_t at = 0; at < count; at++) {
        int32_t number = numbers[at];
        sum += number > above ? number : 0;
        found += number > above;
    }
    ((int32_t *)payload)[0] = sum;
    ((int32_t *)payload)[1] = found;
    samite_reply(payload, 8);
    return 0;
}

SAMITE_KERNEL int32_t atomics(uint8_t *payload, uint32_t len) {
    uint64_t *words = (uint64_t *)payload;
    (void)len;
    samite_store64(GRANT, 64, 40);
    words[0] = samite_add64(GRANT, 64, 2);
    words[1] = samite_cas64(GRANT, 64, 41, 1);
    words[2] = samite_cas64(GRANT, 64, 42, 1);
    words[3] = samite_load64(GRANT, 64);
    samite_reply(payload, 32);
    return 0;
}

SAMITE_KERNEL int32_t copies(uint8_t *payload, uint32_t len) {
    uint8_t bytes[300];
    (void)payload;
    samite_copy_in(GRANT, 8, bytes, sizeof bytes);
    for (uint32_t at = 0; at < sizeof bytes; at++)
        bytes[at] ^= len;
    samite_copy_out(GRANT, 1001, bytes, sizeof bytes);
    samite_copy_out(GRANT, 1, 0, 0);
    samite_reply(bytes, sizeof bytes);
    return 0;
}

SAMITE_KERNEL int32_t forward(uint8_t *payload, uint32_t len) {
    payload[0]++;
    samite_forward((samite_me() + 1) % samite_units(), 4, payload, len);
    return 0;
}

SAMITE_KERNEL int32_t spawn(uint8_t *payload, uint32_t len) {
    for (uint32_t unit = 0; unit < samite_units(); unit++)
        samite_spawn(unit, unit + 1, payload + unit, len - unit);
    samite_inject(1, samite_define(payload, 5), 0, payload, 2);
    samite_reply("done", 4);
    return 0;
}

/* Uses one function wrongly, chosen by the first byte, then goes on. */
SAMITE_KERNEL int32_t wrong(uint8_t *payload, uint32_t len) {
    uint64_t *words = (uint64_t *)payload;
    (void)len;
    switch (payload[0]) {
    case 0: samite_load64(2, 8); break;
    case 1: samite_load64(GRANT, samite_len(GRANT)); break;
    case 2: samite_add64(GRANT, 12, 1); break;
    case 3: samite_store64(4, 8, 1); break;
    case 4: samite_forward(samite_units(), 0, payload, 1); break;
    case 5: samite_spawn(0, 256, payload, 1); break;
    case 6: samite_reply(payload, 1); samite_reply(payload, 2); break;
    case 7: samite_reply(payload, SAMITE_PAYLOAD_MAX + 1); break;
    case 8: samite_fail(-5, "bad weather", 11); break;
    case 9: samite_copy_in(GRANT, UINT64_MAX, payload, 8); break;
    case 10: samite_copy_out(4, 0, payload, 8); break;
    case 11: samite_inject(0, 1, 0, payload, 8); break;
    case 12: for (int count = 0; count < 65; count++) samite_spawn(0, 0, payload, 1); break;
    case 13: return 7;
    case 14: samite_len(16); break;
    case 15: samite_copy_in(GRANT, 0, payload, SAMITE_PAYLOAD_MAX + 1); break;
    }
    words[0] = 1;
    samite_store64(GRANT, 128, 1); /* must not happen */
    return 0;
}
