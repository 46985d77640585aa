//! What bitcode says of itself before its module: that it is bitcode, and who made it. LLVM is not
//! needed for that.
//!
//! Bitcode is a stream of bits: little-endian, in blocks of 32-bit words. A block has records, and
//! begins with the width of the numbers that say what comes next. The first block names the
//! producer: "LLVM22.1.8". LLVM has written it since version 3.8.

use crate::Refused;

const MAGIC: &[u8] = b"BC\xc0\xde";
/// Of a header that some tools put before bitcode: this word, a version, then where the bitcode
/// begins, its length, and a processor.
const WRAPPER: &[u8] = b"\xde\xc0\x17\x0b";

/// Bits of the numbers outside of blocks that say what comes next; then what they say.
const OUTSIDE: u32 = 2;
const ENTER: u64 = 1;
const DEFINE: u64 = 2;
const PLAIN: u64 = 3;

/// The first block, and its record with the name of the producer; the most bytes up to its end.
const IDENTIFICATION: u64 = 13;
const NAME: u64 = 1;
const END_MAX: usize = 1024;

/// The characters of 6 bits.
const CHARACTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._";

/// Returns the major version of the LLVM that made bitcode; 0 if it does not say so, as that of
/// other compilers.
///
/// # Errors
/// [`Refused::Invalid`]: it is no bitcode.
pub fn producer(code: &[u8]) -> Result<u16, Refused> {
    Ok(name(unwrapped(code)?)
        .and_then(|name| major(&name))
        .unwrap_or(0))
}

/// Returns bitcode without the header that it may have.
///
/// # Errors
/// As [`producer`].
pub(super) fn unwrapped(code: &[u8]) -> Result<&[u8], Refused> {
    let inner = match code.starts_with(WRAPPER) {
        true => inside(code),
        false => Some(code),
    };
    let inner = inner.filter(|inner| inner.starts_with(MAGIC));
    inner.ok_or_else(|| Refused::Invalid("it is no LLVM bitcode".into()))
}

fn inside(code: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| {
        let bytes = code.get(at..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(*bytes)).ok()
    };
    let (start, len) = (word(8)?, word(12)?);
    code.get(start..start.checked_add(len)?)
}

/// Reads the major version out of "LLVM22.1.8".
fn major(name: &str) -> Option<u16> {
    let version = name.strip_prefix("LLVM")?;
    version
        .split(|of: char| !of.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// Returns the name of the producer.
fn name(code: &[u8]) -> Option<String> {
    let at = 8 * MAGIC.len();
    let bytes = &code[..code.len().min(END_MAX)];
    let mut bits = Bits { bytes, at };
    if (bits.fixed(OUTSIDE)?, bits.variable(8)?) != (ENTER, IDENTIFICATION) {
        return None;
    }
    let width = u32::try_from(bits.variable(4)?).ok()?;
    bits.at = bits.at.next_multiple_of(32) + 32; // The length of the block.
    let mut shapes: Vec<Vec<Value>> = Vec::new();
    loop {
        let record = match bits.fixed(width)? {
            0 | ENTER => return None, // The end of the block; or a block inside.
            DEFINE => {
                shapes.push(bits.shape()?);
                continue;
            }
            PLAIN => bits.plain()?,
            shape => {
                let shape = usize::try_from(shape - PLAIN - 1).ok()?;
                bits.record(shapes.get(shape)?)?
            }
        };
        if let Some((&NAME, text)) = record.split_first() {
            let text = text
                .iter()
                .map(|of| u8::try_from(*of).ok())
                .collect::<Option<_>>()?;
            return String::from_utf8(text).ok();
        }
    }
}

/// What a value of a record is, in records of one shape.
#[derive(Clone, Copy)]
enum Value {
    Is(u64),
    Fixed(u32),
    Variable(u32),
    Character,
    /// A length, and so many of the value that follows in the shape, which is the last one.
    Array,
}

struct Bits<'a> {
    bytes: &'a [u8],
    /// The next bit.
    at: usize,
}

impl Bits<'_> {
    /// Reads a number of so many bits.
    fn fixed(&mut self, width: u32) -> Option<u64> {
        let mut number = 0;
        for place in 0..width {
            let byte = self.bytes.get(self.at / 8)?;
            number |= 1_u64.checked_shl(place)? * u64::from(byte >> (self.at % 8) & 1);
            self.at += 1;
        }
        Some(number)
    }

    /// Reads a number in parts of so many bits. The first bit of a part says whether there is more.
    fn variable(&mut self, width: u32) -> Option<u64> {
        let (mut number, mut place) = (0, 0);
        loop {
            let part = self.fixed(width)?;
            let more = 1_u64.checked_shl(width.checked_sub(1)?)?;
            number |= (part & (more - 1)).checked_shl(place)?;
            place += width - 1;
            if part & more == 0 {
                return Some(number);
            }
        }
    }

    /// Reads the shape of records.
    fn shape(&mut self) -> Option<Vec<Value>> {
        let count = self.variable(5)?;
        let value = |bits: &mut Self| {
            if bits.fixed(1)? == 1 {
                return Some(Value::Is(bits.variable(8)?));
            }
            Some(match bits.fixed(3)? {
                1 => Value::Fixed(bits.width()?),
                2 => Value::Variable(bits.width()?),
                3 => Value::Array,
                4 => Value::Character,
                _ => return None,
            })
        };
        (0..count).map(|_| value(self)).collect()
    }

    fn width(&mut self) -> Option<u32> {
        let width = self.variable(5)?;
        // Each value takes a bit at least: no length of an array is beyond what there is.
        (1..=64).contains(&width).then_some(width as u32)
    }

    /// Reads a record that has no shape.
    fn plain(&mut self) -> Option<Vec<u64>> {
        let code = self.variable(6)?;
        let count = self.variable(6)?;
        let values = (0..count).map(|_| self.variable(6));
        std::iter::once(Some(code)).chain(values).collect()
    }

    /// Reads a record of a shape.
    fn record(&mut self, shape: &[Value]) -> Option<Vec<u64>> {
        let mut values = Vec::new();
        let mut shape = shape.iter();
        while let Some(of) = shape.next() {
            match (of, shape.as_slice()) {
                (Value::Array, [Value::Is(_) | Value::Array] | []) => return None,
                (Value::Array, [of]) => {
                    for _ in 0..self.variable(6)? {
                        values.push(self.value(*of)?);
                    }
                    return Some(values);
                }
                (of, _) => values.push(self.value(*of)?),
            }
        }
        Some(values)
    }

    fn value(&mut self, of: Value) -> Option<u64> {
        match of {
            Value::Is(number) => Some(number),
            Value::Fixed(width) => self.fixed(width),
            Value::Variable(width) => self.variable(width),
            Value::Character => {
                let at = usize::try_from(self.fixed(6)?).ok()?;
                CHARACTERS.get(at).map(|of| u64::from(*of))
            }
            Value::Array => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_testkit::fuzz;

    /// The first block of what clang 22.1.8 writes.
    const CLANG: &str = "4243c0de3514000005000000620c30244a59bea66dfbb5cf0b51804c01000000";
    /// That of rustc 1.95.0, whose characters have 8 bits.
    const RUSTC: &str = "4243c0de351400000e000000620c301c41c70aac600bad200772e00671e00672\
        d006f2500ff3400f6d10076e900775e00670d006f3400fe1200eec500e42142053000000";
    /// The same name, in a record without a shape.
    const PLAIN_NAME: &str = "4243c0de351400000c00000023e85881156ca115e4400edc200edc400eda401e\
        ea611ee8a10de2c00df2a00edc000eda601ee8211cc4811dca010000";

    fn bytes_of(hexadecimal: &str) -> Vec<u8> {
        let digits: Vec<u8> = (hexadecimal.chars())
            .map(|of| of.to_digit(16).unwrap() as u8)
            .collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()
    }

    /// Puts a header before bitcode, and padding behind it.
    fn wrapped(code: &[u8]) -> Vec<u8> {
        let words = [0x0b17_c0de, 0, 20, code.len() as u32, 7].map(u32::to_le_bytes);
        [words.as_flattened(), code, &[0; 12]].concat()
    }

    #[test]
    fn the_producer_is_read() {
        for (block, says) in [
            (CLANG, "LLVM22.1.8"),
            (RUSTC, "LLVM22.1.2-rust-1.95.0-stable"),
            (PLAIN_NAME, "LLVM22.1.2-rust-1.95.0-stable"),
        ] {
            let code = bytes_of(block);
            assert_eq!(name(&code).as_deref(), Some(says));
            assert_eq!(producer(&code), Ok(22));
            assert_eq!(producer(&wrapped(&code)), Ok(22));
            // What ends early is bitcode all the same; LLVM says more.
            for end in 4..code.len() - 4 {
                assert!(producer(&code[..end]).is_ok(), "{end}");
            }
        }
        for (name, number) in [
            ("LLVM3.8.0", Some(3)),
            ("LLVM22.1.2-rust-1.95.0-stable", Some(22)),
            ("LLVM23git", Some(23)),
            ("APPLE_1_1500.3.9.4_0", None),
            ("LLVM", None),
            ("LLVM99999", None),
        ] {
            assert_eq!(major(name), number, "{name}");
        }
        // Without the block: an old one.
        assert_eq!(producer(b"BC\xc0\xde\x21\x0c\0\0"), Ok(0));
    }

    #[test]
    fn bytes_that_are_no_bitcode_are_refused() {
        let clang = bytes_of(CLANG);
        let whole = wrapped(&clang);
        let cut = &whole[..20 + clang.len() - 1];
        let far = [&whole[..8], &[0xff; 8], &whole[16..]].concat();
        let inner = [&whole[..20], &[0; 44]].concat();
        for bytes in [&b""[..], b"BC", b"\x7fELF", &whole[..12], cut, &far, &inner] {
            let refused = producer(bytes).unwrap_err().to_string();
            assert!(refused.contains("no LLVM bitcode"), "{refused}");
        }
    }

    /// Whatever the first block says, reading it ends.
    #[test]
    fn mutated_headers_end() {
        let name = "bitcode::header::tests::mutated_headers_end";
        let blocks = [CLANG, RUSTC, PLAIN_NAME].map(bytes_of);
        fuzz::rounds(name, 4_000, |_, random| {
            let block = random.choice(&blocks).unwrap();
            let mut bytes = block.clone();
            fuzz::mutate(random, &mut bytes);
            bytes.extend(fuzz::bytes(random, 256));
            let _ = producer(&bytes);
            let behind = [&block[..12], &fuzz::bytes(random, 256)].concat();
            assert!(producer(&behind).is_ok());
        });
    }
}
