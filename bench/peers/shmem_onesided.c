/* One-sided operations over OpenSHMEM. Blocking puts are shmem_putmem and shmem_quiet, since
 * shmem_putmem alone promises nothing about the other side; 8 bytes go by shmem_uint64_p and
 * shmem_uint64_g. A strided transfer is a shmem_putmem per block and one shmem_quiet:
 * shmem_iput moves single elements and is many times slower.
 */
#include "shmem_peer.h"
#include "onesided.h"

static size_t held;

static void let_go(void)
{
    if (!held)
        return;
    shmem_free(window);
    free(origin);
    held = 0;
}

static void hold(size_t bytes)
{
    if (held >= bytes)
        return;
    let_go();
    held = bytes < 1 << 20 ? 1 << 20 : bytes;
    window = symmetric(held);
    origin = take_pages(held);
}

static int offers(const struct command *k)
{
    return 1;
}

static void put_often(const struct command *k, long n)
{
    size_t bytes = (size_t)k->bytes;
    for (long i = 0; i < n; i++) {
        if (bytes == 8)
            shmem_uint64_p((uint64_t *)window, *(uint64_t *)origin, 1);
        else
            shmem_putmem(window, origin, bytes, 1);
        shmem_quiet();
    }
}

static void get_often(const struct command *k, long n)
{
    size_t bytes = (size_t)k->bytes;
    for (long i = 0; i < n; i++) {
        if (bytes == 8)
            *(volatile uint64_t *)origin = shmem_uint64_g((uint64_t *)window, 1);
        else
            shmem_getmem(origin, window, bytes, 1);
    }
}

static void put_nb_often(const struct command *k, long n)
{
    for (long i = 0; i < n; i++) {
        shmem_putmem_nbi(window, origin, (size_t)k->bytes, 1);
        shmem_quiet();
    }
}

static void stride_often(const struct command *k, long n)
{
    size_t block = (size_t)k->bytes;
    for (long i = 0; i < n; i++) {
        for (long b = 0; b < k->window; b++)
            shmem_putmem_nbi(window + 2 * b * block, origin + b * block, block, 1);
        shmem_quiet();
    }
}

static void add_often(const struct command *k, long n)
{
    for (long i = 0; i < n; i++)
        shmem_ulong_atomic_fetch_add((unsigned long *)window, 1, 1);
}
