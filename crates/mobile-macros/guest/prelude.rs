//! What a kernel finds in place of `samite::mobile` when it is compiled to WebAssembly: a `Context`
//! with the same methods, over the functions that kernels import (`samite_engines::wasm`).
//!
//! The host checks every call, and stops a kernel that calls wrongly. So whatever returns has
//! succeeded, and the methods return `Ok`.
//!
//! G1 The host writes `len` bytes at `payload` before it calls an entry, and changes them no more
//!    until the entry has returned.
//! G2 The host reads, or writes, `len` bytes at the address that it is given, during the call, and
//!    stops the kernel if they are not in its memory.

#![no_std]

// The names that a program has for the crate: paths that begin with them mean this file.
extern crate self as samite;
extern crate self as samite_mobile;

pub use guest::*;

/// Exports a kernel under a name.
macro_rules! export {
    ($name:literal, $kernel:path) => {
        const _: () = {
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn __samite_entry(payload: *const u8, len: usize) -> i32 {
                // SAFETY: G1: the host calls it.
                unsafe { crate::guest::run($kernel, payload, len) }
            }
        };
    };
}

/// As in a program: `samite::mobile`.
pub mod mobile {
    pub use crate::guest::*;
}

pub mod guest {
    /// Longest payload, reply and single copy, in bytes.
    pub const PAYLOAD_MAX: u64 = 64 << 10;

    const PIECE: usize = PAYLOAD_MAX as usize;

    /// Longest text of a failure, in bytes.
    const TEXT_MAX: usize = 256;

    mod host {
        #[link(wasm_import_module = "samite")]
        unsafe extern "C" {
            pub(super) safe fn me() -> u32;
            pub(super) safe fn units() -> u32;
            pub(super) safe fn origin() -> u32;
            pub(super) safe fn hops() -> u32;
            pub(super) safe fn len(grant: u32) -> u64;
            pub(super) safe fn load64(grant: u32, offset: u64) -> u64;
            pub(super) safe fn store64(grant: u32, offset: u64, value: u64);
            pub(super) safe fn add64(grant: u32, offset: u64, value: u64) -> u64;
            pub(super) safe fn cas64(grant: u32, offset: u64, expected: u64, new: u64) -> u64;
            pub(super) fn copy_in(grant: u32, offset: u64, to: *mut u8, len: usize);
            pub(super) fn copy_out(grant: u32, offset: u64, from: *const u8, len: usize);
            pub(super) fn forward(unit: u32, entry: u32, from: *const u8, len: usize);
            pub(super) fn spawn(unit: u32, entry: u32, from: *const u8, len: usize);
            pub(super) fn reply(from: *const u8, len: usize);
            pub(super) fn fail(code: i32, from: *const u8, len: usize);
            pub(super) fn define(from: *const u8, len: usize) -> u32;
            pub(super) fn inject(unit: u32, code: u32, entry: u32, from: *const u8, len: usize);
        }
    }

    /// What is left of the limits of a call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Limits {
        /// How often it may still move to another unit.
        pub hops: u16,
    }

    /// Why a kernel fails.
    #[derive(Clone, PartialEq, Eq)]
    pub struct Trap {
        code: i32,
        len: usize,
        text: [u8; TEXT_MAX],
    }

    impl core::fmt::Debug for Trap {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            self.code.fmt(f)
        }
    }

    impl Trap {
        /// Makes the failure of a kernel with a number and a text, which is cut after 256 bytes.
        pub fn failed(code: i32, text: &str) -> Trap {
            let len = text.floor_char_boundary(TEXT_MAX);
            let mut kept = [0; TEXT_MAX];
            kept[..len].copy_from_slice(&text.as_bytes()[..len]);
            Trap {
                code,
                len,
                text: kept,
            }
        }
    }

    /// What a running kernel sees, and what it asks for.
    #[derive(Debug)]
    pub struct Context(());

    impl Context {
        #[inline]
        pub fn me(&self) -> u32 {
            host::me()
        }

        #[inline]
        pub fn units(&self) -> u32 {
            host::units()
        }

        #[inline]
        pub fn origin(&self) -> u32 {
            host::origin()
        }

        #[inline]
        pub fn limits(&self) -> Limits {
            Limits {
                hops: host::hops() as u16,
            }
        }

        #[inline]
        pub fn len(&self, grant: u32) -> Result<u64, Trap> {
            Ok(host::len(grant))
        }

        #[inline]
        pub fn load(&self, grant: u32, offset: u64) -> Result<u64, Trap> {
            Ok(host::load64(grant, offset))
        }

        #[inline]
        pub fn store(&self, grant: u32, offset: u64, value: u64) -> Result<(), Trap> {
            host::store64(grant, offset, value);
            Ok(())
        }

        #[inline]
        pub fn fetch_add(&self, grant: u32, offset: u64, value: u64) -> Result<u64, Trap> {
            Ok(host::add64(grant, offset, value))
        }

        #[inline]
        pub fn compare_exchange(
            &self,
            grant: u32,
            offset: u64,
            expected: u64,
            new: u64,
        ) -> Result<u64, Trap> {
            Ok(host::cas64(grant, offset, expected, new))
        }

        /// Copies in pieces, since the host copies at most [`PAYLOAD_MAX`] at once: the last one
        /// first, so that a range that is not in the segment is found before anything is copied.
        #[inline]
        pub fn read(&self, grant: u32, offset: u64, into: &mut [u8]) -> Result<(), Trap> {
            let (first, rest) = into.split_at_mut(into.len().min(PIECE));
            for (number, piece) in rest.chunks_mut(PIECE).enumerate().rev() {
                let at = offset.saturating_add((number as u64 + 1) * PAYLOAD_MAX);
                // SAFETY: G2, the address and length of a slice that nobody else uses.
                unsafe { host::copy_in(grant, at, piece.as_mut_ptr(), piece.len()) };
            }
            // SAFETY: as above.
            unsafe { host::copy_in(grant, offset, first.as_mut_ptr(), first.len()) };
            Ok(())
        }

        /// In pieces, as [`Context::read`].
        #[inline]
        pub fn write(&self, grant: u32, offset: u64, from: &[u8]) -> Result<(), Trap> {
            let (first, rest) = from.split_at(from.len().min(PIECE));
            for (number, piece) in rest.chunks(PIECE).enumerate().rev() {
                let at = offset.saturating_add((number as u64 + 1) * PAYLOAD_MAX);
                // SAFETY: G2, the address and length of a slice.
                unsafe { host::copy_out(grant, at, piece.as_ptr(), piece.len()) };
            }
            // SAFETY: as above.
            unsafe { host::copy_out(grant, offset, first.as_ptr(), first.len()) };
            Ok(())
        }

        #[inline]
        pub fn forward(&mut self, unit: u32, entry: u32, payload: &[u8]) -> Result<(), Trap> {
            // SAFETY: G2, the address and length of a slice.
            unsafe { host::forward(unit, entry, payload.as_ptr(), payload.len()) };
            Ok(())
        }

        #[inline]
        pub fn spawn(&mut self, unit: u32, entry: u32, payload: &[u8]) -> Result<(), Trap> {
            // SAFETY: G2, the address and length of a slice.
            unsafe { host::spawn(unit, entry, payload.as_ptr(), payload.len()) };
            Ok(())
        }

        #[inline]
        pub fn reply(&mut self, bytes: &[u8]) -> Result<(), Trap> {
            // SAFETY: G2, the address and length of a slice.
            unsafe { host::reply(bytes.as_ptr(), bytes.len()) };
            Ok(())
        }

        #[inline]
        pub fn define(&mut self, code: &[u8]) -> Result<u32, Trap> {
            // SAFETY: G2, the address and length of a slice.
            Ok(unsafe { host::define(code.as_ptr(), code.len()) })
        }

        #[inline]
        pub fn inject(
            &mut self,
            unit: u32,
            code: u32,
            entry: u32,
            payload: &[u8],
        ) -> Result<(), Trap> {
            // SAFETY: G2, the address and length of a slice.
            unsafe { host::inject(unit, code, entry, payload.as_ptr(), payload.len()) };
            Ok(())
        }
    }

    /// Runs a kernel.
    ///
    /// # Safety
    /// The caller passes on what the host has passed (G1).
    #[inline(always)]
    pub unsafe fn run(
        kernel: impl FnOnce(&mut Context, &[u8]) -> Result<(), Trap>,
        payload: *const u8,
        len: usize,
    ) -> i32 {
        // SAFETY: G1.
        let payload = unsafe { core::slice::from_raw_parts(payload, len) };
        match kernel(&mut Context(()), payload) {
            Ok(()) => 0,
            Err(trap) => {
                // SAFETY: G2, bytes of an array.
                unsafe { host::fail(trap.code, trap.text.as_ptr(), trap.len) };
                1 // Not reached: the host has stopped the kernel.
            }
        }
    }

    /// What `std` has for real numbers, and `core` has not: by the functions that come with the
    /// compiler. Natively they are those of the system, which may differ in the last digit, but
    /// those of the first two lines below are exact everywhere.
    macro_rules! real {
        ($($method:ident($($argument:ident),*) $double:ident $single:ident;)*) => {
            pub trait Real: Sized {
                $(fn $method(self, $($argument: Self),*) -> Self;)*
                fn powi(self, power: i32) -> Self;
                fn log(self, base: Self) -> Self;
                fn fract(self) -> Self;
                fn sin_cos(self) -> (Self, Self);
                fn asinh(self) -> Self;
                fn acosh(self) -> Self;
                fn atanh(self) -> Self;
                fn div_euclid(self, divisor: Self) -> Self;
                fn rem_euclid(self, divisor: Self) -> Self;
            }

            mod double {
                unsafe extern "C" {
                    $(pub(super) safe fn $double(x: f64, $($argument: f64),*) -> f64;)*
                    pub(super) safe fn __powidf2(x: f64, power: i32) -> f64;
                }
            }

            mod single {
                unsafe extern "C" {
                    $(pub(super) safe fn $single(x: f32, $($argument: f32),*) -> f32;)*
                    pub(super) safe fn __powisf2(x: f32, power: i32) -> f32;
                }
            }

            real!(f64 double __powidf2 $($method($($argument),*) $double;)*);
            real!(f32 single __powisf2 $($method($($argument),*) $single;)*);
        };
        (
            $type:ident $functions:ident $power:ident
            $($method:ident($($argument:ident),*) $function:ident;)*
        ) => {
            impl Real for $type {
                $(
                    #[inline]
                    fn $method(self, $($argument: $type),*) -> $type {
                        $functions::$function(self, $($argument),*)
                    }
                )*

                #[inline]
                fn powi(self, power: i32) -> $type {
                    $functions::$power(self, power)
                }

                #[inline]
                fn log(self, base: $type) -> $type {
                    Real::ln(self) / Real::ln(base)
                }

                #[inline]
                fn fract(self) -> $type {
                    self - Real::trunc(self)
                }

                #[inline]
                fn sin_cos(self) -> ($type, $type) {
                    (Real::sin(self), Real::cos(self))
                }

                #[inline]
                fn asinh(self) -> $type {
                    let size = self.abs();
                    let inverse = size.recip();
                    let more = size / (Real::hypot(1.0, inverse) + inverse);
                    Real::ln_1p(size + more).copysign(self)
                }

                #[inline]
                fn acosh(self) -> $type {
                    Real::ln(self + Real::sqrt(self - 1.0) * Real::sqrt(self + 1.0))
                }

                #[inline]
                fn atanh(self) -> $type {
                    let size = self.abs();
                    (Real::ln_1p(2.0 * size / (1.0 - size)) / 2.0).copysign(self)
                }

                #[inline]
                fn div_euclid(self, divisor: $type) -> $type {
                    let whole = Real::trunc(self / divisor);
                    match self % divisor < 0.0 {
                        true if divisor > 0.0 => whole - 1.0,
                        true => whole + 1.0,
                        false => whole,
                    }
                }

                #[inline]
                fn rem_euclid(self, divisor: $type) -> $type {
                    let rest = self % divisor;
                    if rest < 0.0 { rest + divisor.abs() } else { rest }
                }
            }
        };
    }

    real! {
        sqrt() sqrt sqrtf; floor() floor floorf; ceil() ceil ceilf; trunc() trunc truncf;
        round() round roundf; round_ties_even() rint rintf; mul_add(a, b) fma fmaf;
        exp() exp expf; exp2() exp2 exp2f; exp_m1() expm1 expm1f;
        ln() log logf; log2() log2 log2f; log10() log10 log10f; ln_1p() log1p log1pf;
        powf(power) pow powf; cbrt() cbrt cbrtf; hypot(other) hypot hypotf;
        sin() sin sinf; cos() cos cosf; tan() tan tanf;
        asin() asin asinf; acos() acos acosf; atan() atan atanf; atan2(other) atan2 atan2f;
        sinh() sinh sinhf; cosh() cosh coshf; tanh() tanh tanhf;
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        core::arch::wasm32::unreachable()
    }
}
