//! Derives of the `hdl` crate: `Ports`, `Bundle` and `HwEnum`. The generated code names `::hdl`.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote, quote_spanned};
use syn::{Data, DeriveInput, Field, Fields, parse_macro_input};

fn error(at: &impl quote::ToTokens, message: &str) -> TokenStream {
    syn::Error::new_spanned(at, message).to_compile_error().into()
}

fn named_fields(input: &DeriveInput) -> Option<Vec<&Field>> {
    match &input.data {
        Data::Struct(s) => match &s.fields {
            Fields::Named(f) => Some(f.named.iter().collect()),
            _ => None,
        },
        _ => None,
    }
}

/// The argument of `#[name(ARG)]` on the item or field; `Some(None)` for a bare `#[name]`.
fn argument(attributes: &[syn::Attribute], name: &str) -> Option<Option<Tokens>> {
    attributes.iter().find(|a| a.path().is_ident(name)).map(|a| match &a.meta {
        syn::Meta::List(l) => Some(l.tokens.clone()),
        _ => None,
    })
}

/// The shape expression of a field: `Shape::from(arg)`, or the shape's default.
fn shape(bundle: &Tokens, arg: Option<Tokens>) -> Tokens {
    match arg {
        Some(arg) => quote!(<#bundle as ::hdl::Bundle>::Shape::from(#arg)),
        None => quote!(<<#bundle as ::hdl::Bundle>::Shape as ::core::default::Default>::default()),
    }
}

/// Ports of a module: `#[ports(Config)]` on the struct, `#[input(shape)]`, `#[output(shape)]`, `#[sink(shape)]`,
/// `#[source(shape)]` on its fields. In a shape the configuration is `c`; a `Sig` without shape is one bit.
#[proc_macro_derive(Ports, attributes(ports, input, output, sink, source))]
pub fn ports(item: TokenStream) -> TokenStream {
    let input = parse_macro_input!(item as DeriveInput);
    let Some(fields) = named_fields(&input) else {
        return error(&input, "Ports: a struct with named fields");
    };
    let Some(Some(config)) = argument(&input.attrs, "ports") else {
        return error(&input, "Ports: say #[ports(ModuleType)]");
    };
    let c = format_ident!("c");
    let mut made = vec![];
    for f in fields {
        let (name, ty) = (f.ident.as_ref().expect("named"), &f.ty);
        let text = name.to_string();
        let text = text.trim_start_matches("r#").trim_end_matches('_');
        let Some((method, arg)) = ["input", "output", "sink", "source"]
            .into_iter()
            .find_map(|m| argument(&f.attrs, m).map(|a| (format_ident!("{m}", span = name.span()), a)))
        else {
            return error(f, "Ports: each field is #[input], #[output], #[sink] or #[source]");
        };
        let bundle = if method == "sink" || method == "source" {
            quote!(<#ty as ::hdl::StreamOf>::Data)
        } else {
            quote!(#ty)
        };
        let shape = shape(&bundle, arg);
        made.push(quote_spanned!(name.span()=> #name: ports.#method::<#bundle>(#text, &#shape)));
    }
    let ident = &input.ident;
    quote! {
        impl ::hdl::Ports for #ident {
            type Config = #config;
            fn declare(#c: &Self::Config, ports: &mut ::hdl::PortBuilder) -> Self {
                let _ = #c;
                #ident { #(#made),* }
            }
        }
    }
    .into()
}

/// A group of signals: `#[bundle(Shape)]` on the struct if widths depend on something (`c` in the shapes),
/// `#[shape(expr)]` on its fields (a `Sig` without shape is one bit).
#[proc_macro_derive(Bundle, attributes(bundle, shape))]
pub fn bundle(item: TokenStream) -> TokenStream {
    let input = parse_macro_input!(item as DeriveInput);
    let Some(fields) = named_fields(&input) else {
        return error(&input, "Bundle: a struct with named fields");
    };
    let shape_type = argument(&input.attrs, "bundle").flatten().unwrap_or_else(|| quote!(()));
    let c = format_ident!("c");
    let (mut made, mut listed) = (vec![], vec![]);
    for f in fields {
        let (name, ty) = (f.ident.as_ref().expect("named"), &f.ty);
        let text = name.to_string();
        let text = text.trim_start_matches("r#").trim_end_matches('_');
        let shape = shape(&quote!(#ty), argument(&f.attrs, "shape").flatten());
        made.push(quote!(#name: <#ty as ::hdl::Bundle>::build(&#shape, &join(#text), make)));
        listed.push(quote!(all.extend(::hdl::Bundle::signals(&self.#name));));
    }
    let ident = &input.ident;
    quote! {
        impl ::hdl::Bundle for #ident {
            type Shape = #shape_type;
            #[track_caller]
            fn build(#c: &Self::Shape, name: &str, make: &mut dyn FnMut(&str, u32) -> ::hdl::Sig) -> Self {
                let _ = #c;
                let join = |field: &str| if name.is_empty() { field.to_string() } else { format!("{name}_{field}") };
                #ident { #(#made),* }
            }
            fn signals(&self) -> Vec<::hdl::Sig> {
                let mut all = Vec::new();
                #(#listed)*
                all
            }
        }
    }
    .into()
}

/// A hardware enum from a fieldless enum; explicit discriminants are kept.
#[proc_macro_derive(HwEnum)]
pub fn hw_enum(item: TokenStream) -> TokenStream {
    let input = parse_macro_input!(item as DeriveInput);
    let Data::Enum(data) = &input.data else { return error(&input, "HwEnum: an enum") };
    if let Some(v) = data.variants.iter().find(|v| !matches!(v.fields, Fields::Unit)) {
        return error(v, "HwEnum: variants carry no fields");
    }
    let ident = &input.ident;
    let name = ident.to_string();
    let variants = data.variants.iter().map(|v| {
        let (v, text) = (&v.ident, v.ident.to_string());
        quote!((#ident::#v, #text, #ident::#v as u64))
    });
    quote! {
        impl ::hdl::HwEnum for #ident {
            const NAME: &'static str = #name;
            const VARIANTS: &'static [(Self, &'static str, u64)] = &[#(#variants),*];
            fn code(self) -> u64 { self as u64 }
        }
    }
    .into()
}
