//! Whole numbers that are computed in a workflow: `4 * {cells}^3`.

/// The parentheses that may stand in each other. A text from a file must not exhaust the stack.
const DEPTH: u32 = 64;

const FORM: &str = "write whole numbers with + - * / ^ and parentheses";
const TOO_LONG: &str = "a part of it has more than 127 bits";

/// A number, or why there is none.
type Answer = Result<i128, &'static str>;

/// An operator: its name, its precedence, and what it does.
type Operator = (char, u8, fn(i128, i128) -> Answer);

/// The operators, with the usual precedence; those of one precedence apply from left to right.
const OPERATORS: [Operator; 5] = [
    ('+', 1, |a, b| a.checked_add(b).ok_or(TOO_LONG)),
    ('-', 1, |a, b| a.checked_sub(b).ok_or(TOO_LONG)),
    ('*', 2, |a, b| a.checked_mul(b).ok_or(TOO_LONG)),
    ('/', 2, divide),
    ('^', 3, power),
];

/// Divides, and rounds down, also below zero.
fn divide(a: i128, b: i128) -> Answer {
    if b == 0 {
        return Err("it divides by zero");
    }
    let quotient = a.checked_div(b).ok_or(TOO_LONG)?;
    let is_above = a % b != 0 && (a < 0) != (b < 0);
    Ok(quotient - i128::from(is_above))
}

fn power(a: i128, b: i128) -> Answer {
    if b < 0 {
        return Err("it has a negative exponent");
    }
    let power = u32::try_from(b).ok().and_then(|b| a.checked_pow(b));
    power.ok_or(TOO_LONG)
}

/// What is left of an expression.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    /// Evaluates operands and operators, as long as their precedence is at least `least`
    /// (precedence climbing).
    fn value(&mut self, least: u8, depth: u32) -> Answer {
        let mut value = self.operand(depth)?;
        while let Some((name, precedence, apply)) = self.operator()
            && precedence >= least
        {
            self.take(name);
            value = apply(value, self.value(precedence + 1, depth)?)?;
        }
        Ok(value)
    }

    fn operand(&mut self, depth: u32) -> Answer {
        if self.take('(') {
            let depth = depth.checked_sub(1);
            let value = self.value(0, depth.ok_or("its parentheses are nested too deeply")?)?;
            return self.take(')').then_some(value).ok_or(FORM);
        }
        let digits = self.0.trim_start();
        let end = digits.find(|letter: char| !letter.is_ascii_digit());
        let (digits, rest) = digits.split_at(end.unwrap_or(digits.len()));
        self.0 = rest;
        match digits {
            "" => Err(FORM),
            digits => digits.parse().map_err(|_| TOO_LONG),
        }
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
/// A message if the text is not such an expression, its value is negative or has more than 63 bits,
/// or a part of it has no value or one of more than 127 bits.
pub(super) fn number(text: &str) -> Result<u64, String> {
    let no_number = |why| match why {
        FORM => format!("`{text}` is not a number: {FORM}"),
        why => format!("`{text}` is not a valid number: {why}"),
    };
    // In parentheses, so that they do not become additional digits of an adjacent number.
    let plain = text.replace("true", "(1)").replace("false", "(0)");
    let mut rest = Rest(&plain);
    let value = rest.value(0, DEPTH).map_err(no_number)?;
    match value {
        _ if !rest.0.trim().is_empty() => Err(no_number(FORM)),
        ..0 => Err(no_number("it is negative")),
        // The same limit as for whole numbers in a configuration.
        _ if value > i128::from(i64::MAX) => Err(no_number("it has more than 63 bits")),
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
            ("10 + (3 - 10) / 2", 6),
            ("2^126 / 2^120", 64),
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
        // Also if what is left of the value would be a number.
        for (text, why) in [
            ("0 * (1 / 0)", "it divides by zero"),
            ("10 / (1 / 0)", "it divides by zero"),
            ("2^127 * 4 / 2^126", TOO_LONG),
            ("2^200 - 2^199", TOO_LONG),
            ("1 + 2^(0 - 1)", "it has a negative exponent"),
            ("3 - 4", "it is negative"),
            ("2^64", "it has more than 63 bits"),
        ] {
            let error = number(text).expect_err(text);
            assert_eq!(error, format!("`{text}` is not a valid number: {why}"));
        }
        assert!(numbers("4,,4").is_err());
        let deep = |depth: usize| "(".repeat(depth) + "1" + &")".repeat(depth);
        assert_eq!(number(&deep(DEPTH as usize)), Ok(1));
        assert!(number(&deep(1_000_000)).is_err());
    }
}
