//! Whole numbers that are computed in a workflow: `4 * {cells}^3`.

/// The parentheses that may stand in each other. A text from a file must not exhaust the stack.
const DEPTH: u32 = 64;

/// An operator: its name, its precedence, and what it does. Results beyond 128 bits saturate, far
/// above any accepted number. This detects every overflow of a sum that only grows, but not one
/// that is reduced afterwards.
type Operator = (char, u8, fn(i128, i128) -> i128);

/// The operators, with the usual precedence; those of one precedence apply from left to right.
const OPERATORS: [Operator; 5] = [
    ('+', 1, i128::saturating_add),
    ('-', 1, i128::saturating_sub),
    ('*', 2, i128::saturating_mul),
    ('/', 2, |a, b| a.checked_div(b).unwrap_or(i128::MAX)),
    ('^', 3, |a, b| {
        u32::try_from(b).map_or(i128::MAX, |b| a.saturating_pow(b))
    }),
];

/// What is left of an expression.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    /// Evaluates operands and operators, as long as their precedence is at least `least`
    /// (precedence climbing). `None` if there is no operand where one has to be.
    fn value(&mut self, least: u8, depth: u32) -> Option<i128> {
        let mut value = self.operand(depth)?;
        while let Some((name, precedence, apply)) = self.operator()
            && precedence >= least
        {
            self.take(name);
            value = apply(value, self.value(precedence + 1, depth)?);
        }
        Some(value)
    }

    fn operand(&mut self, depth: u32) -> Option<i128> {
        if self.take('(') {
            let value = self.value(0, depth.checked_sub(1)?)?;
            return self.take(')').then_some(value);
        }
        let digits = self.0.trim_start();
        let end = digits.find(|letter: char| !letter.is_ascii_digit());
        let (digits, rest) = digits.split_at(end.unwrap_or(digits.len()));
        self.0 = rest;
        digits.parse().ok()
    }

    fn operator(&self) -> Option<Operator> {
        let next = self.0.trim_start().chars().next()?;
        OPERATORS.into_iter().find(|(name, ..)| *name == next)
    }

    /// Goes beyond a character, if it is the next one.
    fn take(&mut self, next: char) -> bool {
        let rest = self.0.trim_start().strip_prefix(next);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }
}

/// Evaluates whole numbers with `+ - * / ^` and parentheses; `/` rounds down. `true` is 1 and
/// `false` is 0, so that a switch can be part of a sum.
///
/// # Errors
/// A message if the text is not such an expression, or its value is negative or has more than 63
/// bits.
pub(super) fn number(text: &str) -> Result<u64, String> {
    let form = "write whole numbers with + - * / ^ and parentheses";
    let no_number = |why: String| format!("`{text}` is not a valid number ({why}): {form}");
    // In parentheses, so that they do not become additional digits of an adjacent number.
    let plain = text.replace("true", "(1)").replace("false", "(0)");
    let mut rest = Rest(&plain);
    let value = rest.value(0, DEPTH).filter(|_| rest.0.trim().is_empty());
    let value = value.ok_or_else(|| format!("`{text}` is not a number: {form}"))?;
    match value {
        ..0 => Err(no_number("it is negative".into())),
        // The same limit as for whole numbers in a configuration.
        _ if value > i128::from(i64::MAX) => Err(no_number("it has more than 63 bits".into())),
        _ => Ok(value as u64),
    }
}

/// Evaluates numbers separated by commas.
///
/// # Errors
/// As for [`number`].
pub(super) fn numbers(text: &str) -> Result<Vec<u64>, String> {
    text.split(',').map(|part| number(part.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_worked_out_as_at_school() {
        for (text, value) in [
            ("12", 12),
            ("4 * 20^3", 32_000),
            ("2 + 3 * 4", 14),
            ("(2 + 3) * 4", 20),
            ("10 - 3 - 2", 5),
            ("100 / 8 / 2", 6),
            ("2^3^2", 64),
            (" ( 7 ) ", 7),
            ("2*(3+(4-1))^2", 72),
            ("4 + true * 3", 7),
            ("4 + false * 3", 4),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(number(text), Ok(value), "{text}");
        }
        assert_eq!(numbers("2048, 3*4"), Ok(vec![2048, 12]));
    }

    #[test]
    fn what_is_no_number_is_said() {
        for text in [
            "",
            "x",
            "4 *",
            "-5",
            "3 - 4",
            "2^63",
            "10^40",
            "1 / 0",
            "1.5",
            "2^(0-1)",
            "1true",
            "true1",
            "truetrue",
            "True",
            "(1",
            "1)",
            "()",
            "1 2",
            "+1",
            "1 + + 1",
            "\u{661}",
            "340282366920938463463374607431768211456",
        ] {
            let error = number(text).expect_err(text);
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        assert!(numbers("4,,4").is_err());
        let deep = |depth: usize| "(".repeat(depth) + "1" + &")".repeat(depth);
        assert_eq!(number(&deep(DEPTH as usize)), Ok(1));
        assert!(number(&deep(1_000_000)).is_err());
    }
}
