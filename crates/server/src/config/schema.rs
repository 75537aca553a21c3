//! The macro that declares the settings once: fields, keys, defaults, ranges and descriptions.

/// Why a setting could not be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetError {
    /// No such section; lists the sections.
    Section(Vec<&'static str>),
    /// No such key in the section; lists the keys.
    Key(Vec<&'static str>),
    /// The value is wrong; has the expected form.
    Value(String),
}

/// One setting in the dump and the reference.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The section.
    pub section: &'static str,
    /// The key.
    pub key: &'static str,
    /// Its description.
    pub doc: &'static [&'static str],
    /// Its value as TOML.
    pub value: String,
}

/// Declares the sections of the configuration.
macro_rules! sections {
    ($(
        $(#[doc = $sdoc:literal])+
        $section:ident: $type:ident {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $kind:ty = $default:expr $(, in $low:literal..=$high:literal)?;
            )+
        }
    )+) => {
        $(
            $(#[doc = $sdoc])+
            #[derive(Debug, Clone, PartialEq)]
            pub struct $type {
                $($(#[doc = $doc])+ pub $key: $kind,)+
            }

            impl Default for $type {
                fn default() -> Self {
                    Self { $($key: $default,)+ }
                }
            }

            impl $type {
                fn set(&mut self, key: &str, input: $crate::config::setting::Input<'_>) -> Result<(), $crate::config::schema::SetError> {
                    use $crate::config::{schema::{SetError, read_within}};
                    match key {
                        $(stringify!($key) => {
                            #[allow(unused_mut, unused_assignments, reason = "only ranged settings assign it")]
                            let mut range: Option<(u64, u64)> = None;
                            $(range = Some(($low, $high));)?
                            self.$key = read_within::<$kind>(input, range)?;
                            Ok(())
                        })+
                        _ => Err(SetError::Key(vec![$(stringify!($key)),+])),
                    }
                }
            }
        )+

        /// The configuration. `Default` has the default of each setting.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Config {
            $($(#[doc = $sdoc])+ pub $section: $type,)+
            /// Centrifugo's options: the tables in `[live]`.
            pub channels: steadfast_live::LiveConfig,
            /// Block devices: the `[[block]]` tables.
            pub block: Vec<$crate::config::BlockSpec>,
            /// Buckets to be created: the `[[buckets]]` tables.
            pub buckets: Vec<$crate::config::BucketSpec>,
            /// The files that were read.
            pub files: Vec<std::path::PathBuf>,
            /// Places of these files whose text looks like the name of a variable, with the name.
            pub literal: Vec<(String, String)>,
        }

        impl Config {
            /// The names of the sections.
            pub const SECTIONS: &'static [&'static str] = &[$(stringify!($section)),+];

            /// Sets one value.
            ///
            /// # Errors
            /// When there is no such setting or the value is wrong.
            pub fn set(&mut self, section: &str, key: &str, input: $crate::config::setting::Input<'_>) -> Result<(), $crate::config::schema::SetError> {
                match section {
                    $(stringify!($section) => self.$section.set(key, input),)+
                    _ => Err($crate::config::schema::SetError::Section(Self::SECTIONS.to_vec())),
                }
            }

            /// Every setting with its value, in order.
            pub fn shown(&self) -> Vec<$crate::config::schema::Shown> {
                use $crate::config::setting::Setting;
                vec![$($($crate::config::schema::Shown {
                    section: stringify!($section),
                    key: stringify!($key),
                    doc: &[$($doc),+],
                    value: Setting::to_toml(&self.$section.$key),
                },)+)+]
            }

            /// The description of a section.
            pub(super) fn section_doc(section: &str) -> &'static [&'static str] {
                match section {
                    $(stringify!($section) => &[$($sdoc),+],)+
                    _ => &[],
                }
            }
        }
    };
}

pub(super) use sections;

use super::setting::{Input, Setting};

/// Reads a value and checks its range.
pub(super) fn read_within<T: Setting>(input: Input<'_>, range: Option<(u64, u64)>) -> Result<T, SetError> {
    let value = T::read(input).map_err(SetError::Value)?;
    if let Some(range) = range {
        check_range(&value, range).map_err(SetError::Value)?;
    }
    Ok(value)
}

/// Checks a range, whose bounds are in the smallest unit of the type.
pub(super) fn check_range<T: Setting>(value: &T, (low, high): (u64, u64)) -> Result<(), String> {
    match value.magnitude() {
        Some(magnitude) if !(low..=high).contains(&magnitude) => {
            Err(format!("{} is out of range: use {} to {}", T::show(magnitude), T::show(low), T::show(high)))
        }
        _ => Ok(()),
    }
}
