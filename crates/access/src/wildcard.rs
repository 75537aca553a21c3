//! Texts with `*`, `?` and variables.

use std::borrow::Cow;

use crate::fact::{Fact, Facts};

/// The most `?` in a pattern: the search for what has some is not linear.
const ONES_MAX: usize = 64;

/// A part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    /// This text.
    Text(String),
    /// Any characters, or none.
    Any,
    /// One character.
    One,
    /// The value of a fact, or this text where the request has no such fact.
    Variable(Fact, Option<String>),
}

/// A pattern: `*` stands for any characters, `?` for one, and `${...}` for a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wildcard {
    pieces: Vec<Piece>,
    has_variables: bool,
}

impl Wildcard {
    /// A pattern without variables.
    pub(crate) fn plain(pattern: &str) -> Self {
        let mut built = Self { pieces: Vec::new(), has_variables: false };
        built.add_pattern(pattern);
        built
    }

    /// A text without wildcards or variables.
    fn literal(text: &str) -> Self {
        let mut built = Self { pieces: Vec::new(), has_variables: false };
        built.add_text(text);
        built
    }

    /// A text of a policy: with wildcards if `wild`, with variables if `variables`.
    ///
    /// # Errors
    /// More than [`ONES_MAX`] `?`, or a variable that is unknown or does not end, in words.
    pub(crate) fn compile(pattern: &str, wild: bool, variables: bool) -> Result<Self, String> {
        if wild && pattern.matches('?').count() > ONES_MAX {
            return Err(format!("a pattern has at most {ONES_MAX} question marks"));
        }
        Ok(match (variables, wild) {
            (true, wild) => Self::parse(pattern, wild)?,
            (false, true) => Self::plain(pattern),
            (false, false) => Self::literal(pattern),
        })
    }

    /// A text with variables, and with wildcards if `wild`.
    ///
    /// # Errors
    /// A variable that is unknown or does not end, in words.
    fn parse(pattern: &str, wild: bool) -> Result<Self, String> {
        let mut built = Self { pieces: Vec::new(), has_variables: false };
        let mut rest = pattern;
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            let Some(end) = from.find('}') else { return Err(format!("the variable in {pattern:?} has no end")) };
            if wild {
                built.add_pattern(before)
            } else {
                built.add_text(before)
            }
            built.add_variable(&from[2..end])?;
            rest = &from[end + 1..];
        }
        if wild {
            built.add_pattern(rest)
        } else {
            built.add_text(rest)
        }
        Ok(built)
    }

    fn add_variable(&mut self, inner: &str) -> Result<(), String> {
        // `${*}`, `${?}` and `${$}` are those characters themselves.
        if matches!(inner, "*" | "?" | "$") {
            self.add_text(inner);
            return Ok(());
        }
        let (name, default) = match inner.split_once(',') {
            Some((name, default)) => {
                let default = default.trim();
                let quoted = default.strip_prefix('\'').and_then(|default| default.strip_suffix('\''));
                (
                    name.trim(),
                    Some(quoted.ok_or_else(|| format!("the default in ${{{inner}}} is not in single quotes"))?),
                )
            }
            None => (inner, None),
        };
        let fact = Fact::parse(name).ok_or_else(|| format!("${{{inner}}} is no variable that is known"))?;
        self.pieces.push(Piece::Variable(fact, default.map(str::to_owned)));
        self.has_variables = true;
        Ok(())
    }

    fn add_text(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Text(before)) => before.push_str(text),
            _ => self.pieces.push(Piece::Text(text.into())),
        }
    }

    fn add_pattern(&mut self, pattern: &str) {
        for part in pattern.split_inclusive(['*', '?']) {
            let (text, last) = match part.strip_suffix('*') {
                Some(text) => (text, Some(Piece::Any)),
                None => part.strip_suffix('?').map_or((part, None), |text| (text, Some(Piece::One))),
            };
            self.add_text(text);
            match last {
                Some(Piece::Any) if self.pieces.last() == Some(&Piece::Any) => {}
                Some(piece) => self.pieces.push(piece),
                None => {}
            }
        }
    }

    /// Whether the whole of `text` matches. Variables match nothing.
    pub(crate) fn matches(&self, text: &str) -> bool {
        !self.has_variables && pieces_match(&self.pieces, text)
    }

    /// Whether the whole of `text` matches, with facts for the variables. A
    /// pattern with a variable that the request does not have matches nothing.
    pub(crate) fn matches_in(&self, text: &str, facts: &dyn Facts) -> bool {
        match self.resolved(facts) {
            Some(pattern) => pattern.matches(text),
            None => false,
        }
    }

    /// Its parts between the first five colons. Colons within variables do not count.
    pub(crate) fn split_parts(self) -> Vec<Self> {
        let empty = || Self { pieces: Vec::new(), has_variables: false };
        let (mut parts, mut part) = (Vec::new(), empty());
        for piece in self.pieces {
            let Piece::Text(text) = piece else {
                part.has_variables |= matches!(piece, Piece::Variable(..));
                part.pieces.push(piece);
                continue;
            };
            let mut rest = text.as_str();
            while let Some((before, after)) = rest.split_once(':').filter(|_| parts.len() < 5) {
                part.add_text(before);
                parts.push(std::mem::replace(&mut part, empty()));
                rest = after;
            }
            part.add_text(rest);
        }
        parts.push(part);
        parts
    }

    /// Its text, where it has no wildcards.
    pub(crate) fn text_in<'a>(&'a self, facts: &dyn Facts) -> Option<Cow<'a, str>> {
        let resolved = self.resolved(facts)?;
        match resolved {
            Cow::Borrowed(pattern) => match pattern.pieces.as_slice() {
                [] => Some(Cow::Borrowed("")),
                [Piece::Text(text)] => Some(Cow::Borrowed(text.as_str())),
                _ => None,
            },
            Cow::Owned(mut pattern) => match pattern.pieces.pop() {
                None => Some(Cow::Borrowed("")),
                Some(Piece::Text(text)) if pattern.pieces.is_empty() => Some(Cow::Owned(text)),
                Some(_) => None,
            },
        }
    }

    /// The text in front of the first wildcard or variable.
    pub(crate) fn beginning(&self) -> &str {
        match self.pieces.first() {
            Some(Piece::Text(text)) => text,
            _ => "",
        }
    }

    /// Itself with texts for the variables; `None` if the request lacks one.
    fn resolved(&self, facts: &dyn Facts) -> Option<Cow<'_, Self>> {
        if !self.has_variables {
            return Some(Cow::Borrowed(self));
        }
        let mut built = Self { pieces: Vec::new(), has_variables: false };
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => built.add_text(text),
                Piece::Variable(fact, default) => match (facts.values(fact).into_iter().next(), default) {
                    (Some(value), _) => built.add_text(&value),
                    (None, Some(default)) => built.add_text(default),
                    (None, None) => return None,
                },
                wild => built.pieces.push(wild.clone()),
            }
        }
        Some(Cow::Owned(built))
    }
}

/// Whether the pieces, which have no variables, match all of `text`. After each `*`, the first
/// place where the pieces up to the next `*` match is as good as any later one. So the work is
/// linear, but for the length of what has a `?`.
fn pieces_match(pieces: &[Piece], text: &str) -> bool {
    let mut groups = pieces.split(|piece| *piece == Piece::Any);
    let first = groups.next().unwrap_or_default();
    let Some(mut rest) = strip_group(first, text) else { return false };
    let groups: Vec<&[Piece]> = groups.collect();
    let Some((last, middle)) = groups.split_last() else { return rest.is_empty() };
    for group in middle {
        let Some(after) = find_group(group, rest) else { return false };
        rest = after;
    }
    ends_with_group(last, rest)
}

/// What follows the group at the beginning of `text`; `None` if it is not there.
fn strip_group<'a>(group: &[Piece], text: &'a str) -> Option<&'a str> {
    group.iter().try_fold(text, |rest, piece| match piece {
        Piece::Text(want) => rest.strip_prefix(want.as_str()),
        Piece::One => {
            let mut chars = rest.chars();
            chars.next().map(|_| chars.as_str())
        }
        Piece::Any | Piece::Variable(..) => None,
    })
}

/// What follows the first place of the group in `text`.
fn find_group<'a>(group: &[Piece], text: &'a str) -> Option<&'a str> {
    if let [Piece::Text(want)] = group {
        return text.find(want.as_str()).map(|at| &text[at + want.len()..]);
    }
    let places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    places.into_iter().find_map(|at| strip_group(group, &text[at..]))
}

/// Whether `text` ends with the group, which has a fixed number of characters.
fn ends_with_group(group: &[Piece], text: &str) -> bool {
    group
        .iter()
        .rev()
        .try_fold(text, |rest, piece| match piece {
            Piece::Text(want) => rest.strip_suffix(want.as_str()),
            Piece::One => {
                let mut chars = rest.chars();
                chars.next_back().map(|_| chars.as_str())
            }
            Piece::Any | Piece::Variable(..) => None,
        })
        .is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The slow and obvious way.
    fn obvious(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(('*', rest)), None) => obvious(rest, text),
            (Some(('*', rest)), Some((_, after))) => obvious(rest, text) || obvious(pattern, after),
            (Some(('?', rest)), Some((_, after))) => obvious(rest, after),
            (Some((want, rest)), Some((is, after))) => want == is && obvious(rest, after),
            (Some(_), None) => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn a_pattern_matches_what_the_obvious_way_matches(pattern in "[ab*?ü]{0,8}", text in "[abü]{0,10}") {
            let (chars, texts): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
            prop_assert_eq!(Wildcard::plain(&pattern).matches(&text), obvious(&chars, &texts));
        }
    }

    #[test]
    fn many_stars_take_no_longer() {
        let pattern = Wildcard::plain(&"*a".repeat(5_000));
        assert!(pattern.matches(&"a".repeat(5_000)));
        assert!(!pattern.matches(&"a".repeat(4_999)));
    }
}
