//! Random indices, the same in every run.

/// Returns the indices that a unit uses: each in `0..total`.
pub(crate) fn random_places(unit: u32, total: u64) -> impl Iterator<Item = u64> {
    let mut random = fastrand::Rng::with_seed(0x5a4d_1732 + u64::from(unit));
    std::iter::repeat_with(move || random.u64(..total))
}
