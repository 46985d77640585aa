/* One-sided operations without any call for the data: a window of MPI_Win_allocate_shared, the
 * other rank's part by MPI_Win_shared_query, stores, loads and memcpy, and MPI_Win_sync, by which
 * MPI orders them.
 */
#include "mpi_peer.h"
#include "onesided.h"

static MPI_Win win;
static unsigned char *theirs;
static size_t held;

static void let_go(void)
{
    if (!held)
        return;
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    free(origin);
    held = 0;
}

static void hold(size_t bytes)
{
    if (held >= bytes)
        return;
    let_go();
    held = bytes < 1 << 20 ? 1 << 20 : bytes;
    MPI_Info apart;
    MPI_Info_create(&apart);
    MPI_Info_set(apart, "alloc_shared_noncontig", "true"); /* each part on pages of its own */
    MPI_Win_allocate_shared((MPI_Aint)held, 1, apart, MPI_COMM_WORLD, &window, &win);
    MPI_Info_free(&apart);
    memset(window, 0, held);
    origin = take_pages(held);
    MPI_Aint size;
    int unit;
    MPI_Win_shared_query(win, 1, &size, &unit, &theirs);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
}

static int offers(const struct command *k)
{
    return !strcmp(k->name, "put") || !strcmp(k->name, "get");
}

static void put_often(const struct command *k, long n)
{
    if (k->bytes == 8) {
        for (long i = 0; i < n; i++) {
            *(volatile uint64_t *)theirs = *(volatile uint64_t *)origin;
            MPI_Win_sync(win);
        }
        return;
    }
    for (long i = 0; i < n; i++) {
        memcpy(theirs, origin, (size_t)k->bytes);
        MPI_Win_sync(win);
    }
}

static void get_often(const struct command *k, long n)
{
    if (k->bytes == 8) {
        for (long i = 0; i < n; i++) {
            MPI_Win_sync(win);
            *(volatile uint64_t *)origin = *(volatile uint64_t *)theirs;
        }
        return;
    }
    for (long i = 0; i < n; i++) {
        MPI_Win_sync(win);
        memcpy(origin, theirs, (size_t)k->bytes);
    }
}

/* The rest is not MPI's: it has no window operations on plain memory but these. */
static void put_nb_often(const struct command *k, long n)
{
}

static void stride_often(const struct command *k, long n)
{
}

static void add_often(const struct command *k, long n)
{
}
