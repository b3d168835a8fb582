"""The words around one-time codes, and the shapes of the numbers that are something else.

Patterns only: what `codes` looks for, and what it strikes out first. `CUE` says that a code is
meant, `BARE_CUE` may mean other codes too and needs `PURPOSE`, `OFFER` makes it one for a bargain.
"""
# ruff: noqa: RUF001 - other scripts are the point here

import re

# Words for a code. Those of the first group may mean other codes too, and need more around them.
BARE_CUE = re.compile(
    r"(?<!\w)(?:codes?|c[oó]digos?|codice|codici|codul|[ck]odes?|koden|koder|kod[aeiouy]?|kodem"
    r"|kodun(?:uz)?u?|kodą|kód\w{0,3}|koodi(?:si)?|код(?:а|у|ом|ы)?)(?![\w>])"
    r"|コード|代码|代碼|코드|(?:ال)?(?:رمز|كود)ك?(?!\w)",
    re.IGNORECASE,
)
CUE = re.compile(
    r"(?<!\w)(?:passcodes?|pass code|(?:(?-i:PIN|Pin|OTP|(?:m|sms|push|chip|photo|i)?-?TAN)"
    r"|pin(?= ?:| is| ?code))(?:[ -]?(?:codes?|numbers?|nummer|nummern))?s?"
    # German, Dutch and Nordic compounds
    r"|(?:best[äa]tig|verifi|sicherheits|anmelde|login|log-in|zugangs|zugriffs|einmal|freischalt"
    r"|aktivier|authenti|auth|pr[üu]f|bevestig|beveilig|inlog|toegang|eenmal|eng[åa]ng|bekr[äe]ft"
    r"|s[äa]kerhets|sikkerheds|sikkerhets|aktiver|godkend|vahvistus|kirjautumis|turva|kerta|pin"
    r"|sms|otp|passwort|wiederherstell)\w{0,14}-?"
    r"(?:codes?|kode[nr]?|kod(?:er|en)?|koodi(?:si)?|tan|pin|passw[oö]rt|kennwort"
    r"|l[öo]senord|wachtwoord)"
    # Passwords that serve once
    r"|(?:one|single)[- ](?:time|use) (?:pass(?:word|code|phrase)s?|pin|code|key|login code)"
    r"|mot de passe (?:à usage )?unique|password (?:monouso|usa e getta|temporanea)"
    r"|(?:clave|contraseña|código) (?:de (?:un solo|único) uso|temporal|dinámica|din[aâ]mica)"
    r"|clave (?:de )?(?:acceso|verificación|sms)|senha (?:de uso )?(?:única|único|descartável)"
    r"|eenmalig wachtwoord|has[łl]o jednorazowe|jednorazowe has[łl]o"
    r"|tek kullan[ıi]ml[ıi]k (?:[şs]ifre|parola|kod)\w{0,8}|onay kodu\w{0,5}"
    r"|(?:şifreniz|parolanız)(?=:)"
    r"|(?:одноразов|временн|тимчасов)\w{1,3} (?:парол|код)\w{0,2})(?!\w)"
    r"|验证码|校验码|驗證碼|确认码|確認碼|动态(?:密)?码|動態(?:密)?碼|安全[码碼]|登[录入][码碼]"
    r"|一次性(?:密码|密碼|口令)|识别码|認證碼|授权码|認証(?:コード|番号|キー)|確認(?:コード|番号)"
    r"|ワンタイム|暗証番号|パスコード|検証コード|(?:セキュリティ|ログイン)コード"
    r"|(?:인증|확인|보안|로그인) ?(?:번호|코드)|일회용 ?(?:비밀번호|코드)"
    r"|كلمة (?:ال)?مرور (?:ال)?(?:لمرة واحدة|مؤقتة)"
    # "Use 482913 to sign in"
    r"|(?<!\w)(?:enter|use|type) (?=[\w-]{3,9}(?: \d{3,4})? (?:to|as) "
    r"(?:verify|confirm|sign|log|complete|activate|authenticate|authori[sz]e|continue|reset|finish"
    r"|validate))",
    re.IGNORECASE,
)
# A bare word in a sentence with one of these is a code for signing in or confirming.
PURPOSE = re.compile(
    r"v[eé]rif|weryfik|overov|ověřov|confirm|conferm|potwierdz|security|sécurité|seguridad"
    r"|segurança|sicurezza|bezpiecze|log-?in|log in|sign-?(?:in|up)|sign(?:ing)? (?:in|up)"
    r"|logging in|logowan|connexion|connecter|iniciar|inicio|acces[so]|accès|accéder|acceder"
    r"|authenti|auten(?:tica|ty)|one-time|single-use|usage unique|monouso|un solo uso|uso único"
    r"|jednoraz|tek kullan|do[ğg]rula|g[üu]venlik|giri[şs]|factor|2fa|2-step|two-step|activat"
    r"|attiva|ativa|activa|aktyw|reset|recover|backup|anmeld|einlogg|bestätig|inlogg|logga in"
    r"|подтвер|подтверд|вход|войти|доступ|безопас|авториз|підтвер|вхід|увійти|одноразов"
    r"|認証|確認|ログイン|验证|驗證|登录|登入|인증|로그인|재설정|التحقق|التأكيد|الدخول",
    re.IGNORECASE,
)

# A bare word among these is a code for a bargain.
OFFER = re.compile(
    r"(?<!\w)(?:off|discounts?|sale|deals?|checkout|coupons?|vouchers?|promo\w*|rabatt\w*"
    r"|gutschein\w*|r[ée]duction|descuento|rebaja\w*|sconto|desconto|korting|zniżk\w*|indirim\w*"
    r"|скидк\w*|знижк\w*)(?!\w)|割引|クーポン|优惠|折扣|優惠|할인|خصم",
    re.IGNORECASE,
)

_NUMBER_WORD = r"(?:numbers?|num|no|nr|id|ref|nummer|n[°ºo]|#|№)"
_ITS_NUMBER = r"(?:[\s:.#=\-–(]{0,5}[A-Za-z]{0,10}-?\d[\w-]*(?: \d[\w-]*)*)"
IS = (
    r"(?:is|are|was|ist|lautet|sind|est|sont|es|son|è|é|e|são|jest|to|är|er|on|je|это|є|هو|هي"
    r"|は|として|为|為|是|는|은)"
)
_ELSE = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # URLs, hosts, e-mail addresses, UUIDs, IPv6
        r"https?://[^\s<>\"]*|www\.[^\s<>\"]*"
        r"|(?<![\w.+*-])[\w.+*-]{1,64}@[\w.-]{1,255}|localhost:\d+"
        r"|(?<![\w-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
        r"|(?<![\w:])(?:[0-9a-f]{1,4}::?){2,7}[0-9a-f]{0,4}(?!\w)",
        # copyright lines
        r"(?:©|\(c\) ?\d|copyright)[^\n]{0,80}",
        # hex colours and numbers behind a hash, masked cards
        r"[\w\]]{0,20}#(?:[A-Za-z]{0,5}-?\d\w*|[0-9a-f]{3,8}(?!\w))|[*•·xX]{2,}[ -]?\d{2,6}(?!\d)",
        # prices, percentages
        r"(?<!\w)(?:usd|eur|chf|gbp|inr|jpy|cny|rmb|cad|aud|sek|nok|dkk|pln|rub|uah|brl|mxn"
        r"|krw|hkd|twd|sgd|rs\.?|fr\.|r\$|us\$|[$€£¥₹₽₺₩₴]) ?\d[\d ,.'’]{0,15}(?:[.,]?[-–])?"
        r"|[$€£¥₹₽₺₩₴] ?\d[\d ,.'’]{0,15}"
        r"|(?<![A-Za-z0-9.,-])\d[\d ,.'’]{0,15}(?: ?[€£¥₹₽₺₩₴$%％]| ?(?:usd|eur|chf|gbp|euros?"
        r"|dollars?|kr|zł|tl|lei|kč|руб\w{0,5}|грн|percent|prozent)(?!\w)| ?[円元원])",
        # dates, times, versions, IP addresses, amounts: digits joined by . , : /
        r"(?<![A-Za-z0-9])v?\d+(?:[.,:/]\d+)+(?:-\d+)?"
        r"|(?<![A-Za-z0-9-])\d{4}-\d\d-\d\d(?:T[\d:.]+Z?)?(?![\w-])"
        r"|(?<![\w-])\d{1,2}-\d{1,2}-\d{4}(?![\w-])|(?<!\w)\d{1,2}h\d{0,2}(?!\w)"
        r"|(?<!\w)\d+x\d+(?!\w)|\d{4}(?=年|년)",
        # durations and quantities
        r"(?<![A-Za-z0-9-])\d+(?: ?(?:seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?"
        r"|months?|years?|sekunden?|minuten|stunden?|tagen?|jahren?|heures?|secondes?|jours?"
        r"|secondi|minuti|ore|giorni|segundos?|minutos?|horas?|d[ií]as?|seconden|uur|dagen|minut[ay]?|sekund"
        r"|godzin\w?|dni|dakika|saniye|saat|minuter|timmar|минут\w?|секунд\w?|час\w{0,2}|хвилин\w?"
        r"|годин\w?|points?|punkte|puntos|miles|users?|people|members?|customers?|guests?|items?"
        r"|pieces?|stück|lines?|files?|times|followers|km|kg|mb|gb|kb|kwh|px|employees|copies"
        r"|uhr|o'clock|steps?|votes?|views?|downloads?|commits?|tests?)(?!\w)"
        r"| ?(?:分|秒|時間|小时|小時|天|日|人|件|분|초|시간|일|명|개|دقيقة|دقائق|ثانية|ساعة))",
        # other codes, with what they are
        r"(?<!\w)(?:discount|promo(?:tion(?:al)?)?|voucher|coupon|gift(?:[ -]card)?|offer|savings?"
        r"|referral|reward|qr|zip|post(?:al)?|bar|area|country|error|exit|status|return|response"
        r"|source|dress|colou?r|sort|swift|product|item|article|tracking|order|currency|language"
        r"|tax|morse|http|hs|building|cost)[ -]?codes?(?!\w)"
        rf"(?:(?: {IS})?\s{{0,3}}{_ITS_NUMBER})?"
        r"|(?<!\w)(?:rabatt?|gutschein|aktions|vorteils|promo|kortings|actie|waarde|kupong?|coupon"
        r"|voucher|post|bar|fehler|quell|status|strich|l[äa]nder|farb|fel|fejl|streckk?|zip|qr"
        r"|referans |cadeau|presentkorts?|промо|штрих-?)-?(?:codes?|koder?|koden|kod"
        rf"|код\w?){_ITS_NUMBER}?"
        r"|(?<!\w)(?:code|c[oó]digo|codice|kod|код) ?(?:de |di |do |da |d'|du |à |of )?"
        r"(?:promo\w*|posta\w*|poczt\w*|r[ée]duc\w+|remise|descuento|desconto|cup[oó]n|cupom|sconto"
        r"|rabat\w*|cadeau|parrainage|regalo|barr\w*|kresk\w*|err\w+|błęd\w*|fiscale|qr|source"
        r"|cliente?|client|produit|producto?|prodotto|rastre\w+|seguimiento|pedido|ordine|suivi"
        rf"|conduct|скидк\w+|ошибк\w+|помилк\w+|страны|товара|купона|знижки){_ITS_NUMBER}?"
        r"|(?<!\w)(?:indirim|kampanya|posta|hata|takip|kupon|hediye|qr|barkod|alan|почтовый"
        rf"|поштовий|исходный) ?(?:kodu\w{{0,5}}|код\w?){_ITS_NUMBER}?"
        r"|(?:クーポン|割引|プロモーション|プロモ|エラー|バー|ソース|QR)コード"
        rf"{_ITS_NUMBER}?|(?:优惠|折扣|優惠|邮政编|郵遞區|错误代|錯誤代|条形|源代|二维)[码碼号號]{_ITS_NUMBER}?"
        rf"|(?:할인|쿠폰|오류|QR|프로모션) ?코드{_ITS_NUMBER}?"
        rf"|(?:رمز|كود) (?:ال)?(?:خصم|كوبون|خطأ|بريدي){_ITS_NUMBER}?|الرمز البريدي{_ITS_NUMBER}?",
        # numbers of orders, invoices, customers, tickets, rooms …, and phones
        r"(?<!\w)(?:order|invoice|receipt|customer|client|member(?:ship)?|user|ticket|case|issue"
        r"|tracking|shipment|parcel|reference|ref|booking|reservation|transaction|request|meeting"
        r"|session|serial|model|part|article|item|sku|room|flight|gate|seat|port|build|commit"
        r"|version|pull request|bug|tax|vat|policy|contract|case id|licen[cs]e|employee|zip"
        r"|bestellung|rechnung|auftrag|kunde|kunden|vorgang|vertrag|sendung|zimmer|flug|plz"
        r"|commande|facture|dossier|référence|colis|ordine|fattura|pratica|pedido|factura|fatura"
        r"|nota fiscal|referencia|bestelling|factuur|zamówieni[ea]|faktur[aę]|sipariş"
        r"|beställning|заказ|счет|счёт|замовлення|рахунок|тикет|ending|endziffern?|endend auf"
        r"|terminant par|terminada)"
        rf"s?(?:(?: (?:in|with|auf|par|en)|[\s.:-]{{0,2}}{_NUMBER_WORD}(?!\w)){{1,2}}(?: {IS})?"
        rf"{_ITS_NUMBER}|(?: {IS})?(?![ :.-]*\n){_ITS_NUMBER})"
        r"|(?<!\w)(?:bestell|rechnungs?|auftrags|kunden|vorgangs|vertrags|sendungs|steuer|referenz"
        r"|order|faktura|kund|klant|bestel|factuur|ticket|artikel)-?(?:nummer|nr\.?|id)"
        rf"{_ITS_NUMBER}"
        r"|(?:注文番号|订单号|訂單編號|訂單號|주문 ?번호|発注番号|お客様番号|運單號|快递单号"
        rf"|رقم الطلب|номер заказа){_ITS_NUMBER}"
        r"|(?<!\w)(?:tel|t[ée]l[ée]phone|telefon|phone|fax|mobile|call)(?:[. ]{0,2}number)?"
        r"[.: ]{1,3}\d[\d -]{6,20}"
        r"|(?<!\w)(?:sent|texted|gesendet|geschickt|envoyé|enviado|inviato)[^\W\d]?[\w ]{0,30}?"
        r" (?:to|an|au|al|a) \d[\d -]{3,20}",
        # phone numbers, IBANs
        r"\+ ?\d[\d ()./-]{5,20}|\(\d{1,5}\) ?\d[\d -]{4,20}"
        r"|(?<!\w)[A-Z]{2}\d\d(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,4})?(?!\w)",
    )
)
# Places, where letter case matters.
_PLACES = re.compile(
    r"(?<!\w)(?:(?!IS )[A-Z]{2} \d{5}(?:-\d{4})?|[A-Z]{1,2}-\d{4,5}(?= [A-ZÀ-Þ][a-zà-ÿ])"
    r"|\d{4} (?!IS)[A-Z]{2}"
    r"|[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2})(?!\w)"
    r"|(?<!\w)\d{1,5} (?:[A-Z]\w{1,20} ){1,3}(?:St|Street|Ave|Avenue|Rd|Road|Blvd|Lane|Drive|Way)\b"
)
STRIKE_OUT = (*_ELSE, _PLACES)
