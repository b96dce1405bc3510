"""The currencies in which a policy and prices may be written: amounts of different ones are never added."""

from tools.inputs.notes import nearest

# ISO 4217, active codes, and the word for what a computing centre accounts in.
_ISO_4217 = """
AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CLP CNY
COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR
ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK
MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF
SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU
UZS VED VES VND VUV WST XAF XCD XOF XPF YER ZAR ZMW ZWG """
CURRENCIES = frozenset((*_ISO_4217.split(), "credits"))


def currency_hint(currency: str) -> str:
    """Why this is none."""
    return f"{currency!r} is no currency; {nearest(currency.upper(), CURRENCIES)} (ISO 4217 codes, or 'credits')"
